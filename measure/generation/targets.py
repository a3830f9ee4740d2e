"""Targets: what has to hold of models that generate, and how often it does among what was measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from measure.generation.families import find_family
from measure.generation.family_result import FamilyResult
from measure.generation.models import NEW_TOKENS
from measure.generation.networks import KIND
from measure.generation.witness import BATCHES, PASTS, QUERIES, TOLERANCE, list_sizes
from measure.pages import percent

POINTS = len(BATCHES) * len(PASTS) * len(QUERIES)
_DECODERS, _GENAI, _SHARE = 24, 10, 0.97


@dataclass(frozen=True)
class Target:
    """One claim about everything that was measured."""

    what: str
    wanted: str
    measured: str
    holds: bool


def list_targets(results: Sequence[FamilyResult], verified: Sequence[FamilyResult] = ()) -> list[Target]:
    """
    results   of exports
    verified  those of `verify`
    """
    exported = [result for result in results if not result.failure]
    generating = [result for result in exported if result.kind != KIND]
    chains = [result for result in results if result.kind in ("encoder-decoder", "vision-language")]
    networks = [result for result in results if result.kind == KIND]
    return [
        *_list_decoder_targets([result for result in results if result.kind == "decoder"]),
        *_every("encoder-decoders and vision-language models whose chain gives the model's tokens", chains, agrees),
        *_every(
            "sentence-transformers and diffusers folders whose files give the model's numbers", networks, _is_sound
        ),
        *_every("packages without a module with parameters outside of their files", exported, lambda it: not it.absent),
        *_every(f"families that agree at {POINTS} sizes of (batch, past, query)", generating, _fills_grid),
        *_every("packages with all nodes attributed: 0 `none`, 0 `fallback`", exported, lambda it: not it.unattributed),
        *_every("packages whose modules have one tag in all files", exported, lambda it: not it.two_tags),
        *_every("packages of which `verify` contradicts no node and leaves none to nobody", verified, _is_sound),
        *_list_shares(verified),
    ]


def agrees(result: FamilyResult) -> bool:
    """Whether the files generate what the model does, and hand on what it does."""
    return not result.failure and result.generation.equal and result.generation.worst <= TOLERANCE


def _list_decoder_targets(decoders: Sequence[FamilyResult]) -> list[Target]:
    whole = [result for result in decoders if agrees(result)]
    taken = [result for result in decoders if result.genai and not result.genai.startswith("refused")]
    same = [result for result in taken if result.genai == "equal"]
    return [
        Target(
            f"decoders whose tokens over {NEW_TOKENS} steps and `present.*` at every step are the model's",
            f"at least {_DECODERS}",
            f"{len(whole)} of {len(decoders)}",
            len(whole) >= _DECODERS,
        ),
        Target(
            "decoders whose tokens in onnxruntime-genai are those of `generate`",
            f"at least {_GENAI}",
            f"{len(same)} of {len(taken)} that it takes",
            len(same) >= _GENAI and len(same) == len(taken),
        ),
    ]


def _every(what: str, results: Sequence[FamilyResult], holds: Callable[[FamilyResult], bool]) -> Iterator[Target]:
    """Nothing where nothing was measured."""
    count = sum(holds(result) for result in results)
    if results:
        yield Target(what, "all", f"{count} of {len(results)}", count == len(results))


def _is_sound(result: FamilyResult) -> bool:
    return not result.list_faults()


def _fills_grid(result: FamilyResult) -> bool:
    return result.points == len(list_sizes(find_family(result.family)))


def _list_shares(verified: Sequence[FamilyResult]) -> list[Target]:
    proofs = [result.proof for result in verified if result.proof is not None]
    compute, shown = sum(proof.compute for proof in proofs), sum(proof.compute_shown for proof in proofs)
    if not compute:
        return []
    what = "share of the nodes that compute floats which are proved or enclosed"
    share = shown / compute
    return [Target(what, f"at least {percent(_SHARE)} %", f"{percent(share)} %", share >= _SHARE)]
