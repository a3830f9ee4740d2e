"""The page of models that generate, from families and results. A family that was not measured yet has no row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure.generation.families import Family
from measure.generation.family_result import TASK, FamilyResult
from measure.generation.models import NEW_TOKENS, PROMPTS
from measure.generation.witness import BATCHES, PASTS, QUERIES, TOLERANCE
from measure.pages import MEASURED, Table, compose_page, list_versions, written_by
from measure.results import Results

PAGE = MEASURED / "generation.md"
RESULTS = Path(__file__).with_name("results.json")
POINTS = len(BATCHES) * len(PASTS) * len(QUERIES)
_TITLES = {
    "decoder": "Decoders with their cache",
    "encoder-decoder": "Encoder-decoders",
    "vision-language": "Vision and language",
}
_WANTED_DECODERS, _WANTED_GENAI = 24, 10
_EQUAL = "equal"


@dataclass(frozen=True)
class Target:
    """One claim about all families that were measured."""

    what: str
    wanted: str
    measured: str
    holds: bool


def compose_generation(families: Sequence[Family], results: Results[FamilyResult]) -> str:
    by_kind = {kind: _rows_of(families, results, kind) for kind in _TITLES}
    everything = [result for rows in by_kind.values() for _, result in rows]
    tables = [_compose_targets(list_targets(everything))]
    tables += [_compose_kind(kind, rows) for kind, rows in by_kind.items() if rows]
    return compose_page("Models that generate", _compose_head(families, results), tables)


def list_targets(results: Sequence[FamilyResult]) -> list[Target]:
    """What has to hold, and how often it does."""
    decoders = [result for result in results if result.kind == "decoder"]
    others = [result for result in results if result.kind != "decoder"]
    whole = [result for result in decoders if agrees(result)]
    genai = [result for result in decoders if result.genai == _EQUAL]
    taken = [result for result in decoders if result.genai and not result.genai.startswith("refused")]
    run = [result for result in results if not result.failure]
    return [
        Target(
            f"decoders whose tokens over {NEW_TOKENS} steps and `present.*` at every step are the model's",
            f"at least {_WANTED_DECODERS}",
            f"{len(whole)} of {len(decoders)}",
            len(whole) >= _WANTED_DECODERS,
        ),
        Target(
            "decoders whose tokens in onnxruntime-genai are those of `generate`",
            f"at least {_WANTED_GENAI}",
            f"{len(genai)} of {len(taken)} that it takes",
            len(genai) >= _WANTED_GENAI and len(genai) == len(taken),
        ),
        _every(
            "encoder-decoders and vision-language models whose chain of files gives the model's tokens", others, agrees
        ),
        _every("packages without a module with parameters outside of their files", run, lambda item: not item.absent),
        _every(
            f"families that agree at {POINTS} sizes of (batch, past, query)", run, lambda item: item.points == POINTS
        ),
        _every("packages with all nodes attributed: 0 `none`, 0 `fallback`", run, lambda item: not item.unattributed),
        _every("packages whose modules have one tag in all files", run, lambda item: not item.two_tags),
    ]


def agrees(result: FamilyResult) -> bool:
    return not result.failure and result.generation.equal and result.generation.worst <= TOLERANCE


def _every(what: str, results: Sequence[FamilyResult], holds: Callable[[FamilyResult], bool]) -> Target:
    count = sum(holds(result) for result in results)
    return Target(what, "all", f"{count} of {len(results)}", count == len(results))


def _rows_of(
    families: Sequence[Family], results: Results[FamilyResult], kind: str
) -> list[tuple[Family, FamilyResult]]:
    measured = [(family, results.by_key.get((family.name, TASK))) for family in families if family.kind == kind]
    return [(family, result) for family, result in measured if result is not None]


def _compose_head(families: Sequence[Family], results: Results[FamilyResult]) -> str:
    measured = len(results.by_key)
    left = "" if measured == len(families) else f" {measured} of {len(families)} families were measured so far."
    return (
        f"{written_by('generation', f'with {list_versions(results.versions)}')}\n\n"
        f"Tiny models with random weights (`measure/generation/families.toml`), exported as packages.{left} "
        "A runner that shares no code with the package "
        f"(`measure/generation/chain.py`) runs the files in ONNX Runtime: a batch of {len(PROMPTS)} prompts of "
        f"{' and '.join(map(str, PROMPTS))} tokens, one of them padded, and {NEW_TOKENS} tokens chosen greedily, the "
        "cache handed on. Tensors are equal where they differ by at most "
        f"{TOLERANCE:g} of the largest number in them."
    )


def _compose_targets(targets: Iterable[Target]) -> Table:
    listed = tuple(targets)
    rows = tuple((item.what, item.wanted, item.measured, "yes" if item.holds else "no") for item in listed)
    holds = all(item.holds for item in listed)
    return Table("What has to hold", "", ("what", "wanted", "measured", "holds"), rows, holds)


def _compose_kind(kind: str, rows: Sequence[tuple[Family, FamilyResult]]) -> Table:
    has_genai = kind == "decoder"
    columns = ("family", "layers of the cache", "files", "nodes", "none or fallback", "tokens", "`present.*`", "grid")
    notes = [f"{family.name}: {fault}" for family, result in rows for fault in result.list_faults()]
    refused = [f"{item.family}: onnxruntime-genai {item.genai}" for _, item in rows if item.genai.startswith("refused")]
    text = (
        f"`tokens`: whether all {NEW_TOKENS} steps give those of `generate`. `present.*`: the greatest difference of a "
        f"tensor of the cache at any step. `grid`: of {POINTS} sizes, batch {_list(BATCHES)}, past {_list(PASTS)}, "
        f"query {_list(QUERIES)}, those where logits and cache are equal; a past of {max(PASTS)} exceeds every sliding "
        "window by half."
    )
    cells = tuple(_compose_row(family, result, has_genai=has_genai) for family, result in rows)
    titles = (*columns, "genai") if has_genai else (*columns, "in no file")
    holds = not notes
    return Table(_TITLES[kind], text, titles, cells, holds, (*notes, *refused))


def _compose_row(family: Family, result: FamilyResult, *, has_genai: bool) -> tuple[str, ...]:
    opening = (family.name, ", ".join(family.cache))
    if not result.components:
        return (*opening, "not exported", *("–" for _ in range(6)))
    names = ", ".join(component.name for component in result.components)
    figures = (names, str(result.nodes), str(result.unattributed))
    if result.failure:
        return (*opening, *figures, "not run", *("–" for _ in range(3)))
    generation = result.generation
    tokens = _EQUAL if generation.equal else f"other from step {generation.steps - 1}"
    worst = f"{generation.worst:.1e}"
    last = (result.genai.partition(":")[0] if "refused" in result.genai else result.genai) if has_genai else ""
    absent = ", ".join(result.absent) or "nothing"
    return (*opening, *figures, tokens, worst, f"{result.points} of {POINTS}", last if has_genai else absent)


def _list(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))
