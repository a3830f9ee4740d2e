"""The page of models that generate, from families and results. What was not measured yet has no row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from measure.generation.families import Family
from measure.generation.family_result import PACKAGE, VERIFY, FamilyResult
from measure.generation.models import NEW_TOKENS, PROMPTS
from measure.generation.networks import NETWORKS
from measure.generation.parts import PART, PARTS, PartResult
from measure.generation.targets import POINTS, Target, list_targets
from measure.generation.witness import BATCHES, PASTS, QUERIES, TOLERANCE, list_sizes
from measure.pages import MEASURED, Table, compose_page, list_versions, percent, written_by
from measure.results import Results

PAGE = MEASURED / "generation.md"
RESULTS = Path(__file__).with_name("results.json")
PART_RESULTS = Path(__file__).with_name("parts.json")
_TITLES = {
    "decoder": "Decoders with their cache",
    "encoder-decoder": "Encoder-decoders",
    "vision-language": "Vision and language",
}
_NOTHING = "–"
_NO_PARTS: Results[PartResult] = Results()


def compose_generation(
    families: Sequence[Family], results: Results[FamilyResult], parts: Results[PartResult] = _NO_PARTS
) -> str:
    by_kind = {kind: _rows_of(families, results, kind) for kind in _TITLES}
    networks = [results.by_key[name, PACKAGE] for name in NETWORKS if (name, PACKAGE) in results.by_key]
    exported = [result for rows in by_kind.values() for _, result in rows] + networks
    names = (*(family.name for family in families), *NETWORKS)
    verified = [results.by_key[name, VERIFY] for name in names if (name, VERIFY) in results.by_key]
    measured = [parts.by_key[name, PART] for name in PARTS if (name, PART) in parts.by_key]
    targets = [*list_targets(exported, verified), *(target for part in measured for target in part.targets)]
    tables = [_compose_targets(targets)]
    tables += [_compose_kind(kind, rows) for kind, rows in by_kind.items() if rows]
    tables += [_compose_networks(networks)] if networks else []
    tables += [_compose_proofs(verified)] if verified else []
    tables += [part.table for part in measured]
    return compose_page("Models that generate", _compose_head(families, results), tables)


def _rows_of(
    families: Sequence[Family], results: Results[FamilyResult], kind: str
) -> list[tuple[Family, FamilyResult]]:
    measured = [(family, results.by_key.get((family.name, PACKAGE))) for family in families if family.kind == kind]
    return [(family, result) for family, result in measured if result is not None]


def _compose_head(families: Sequence[Family], results: Results[FamilyResult]) -> str:
    measured = sum((family.name, PACKAGE) in results.by_key for family in families)
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


def _compose_targets(targets: Sequence[Target]) -> Table:
    rows = tuple((item.what, item.wanted, item.measured, "yes" if item.holds else "no") for item in targets)
    holds = all(item.holds for item in targets)
    return Table("What has to hold", "", ("what", "wanted", "measured", "holds"), rows, holds)


def _compose_kind(kind: str, rows: Sequence[tuple[Family, FamilyResult]]) -> Table:
    last = "genai" if kind == "decoder" else "in no file"
    columns = ("family", "layers of the cache", "files", "nodes", "none or fallback", "tokens", "`present.*`", "grid")
    notes = [f"{family.name}: {fault}" for family, result in rows for fault in result.list_faults()]
    refused = [item.genai.removeprefix("refused: ") for _, item in rows if item.genai.startswith("refused")]
    unread = [
        f"{item.family}: in no file, and not read by the model: {', '.join(item.unread)}"
        for _, item in rows
        if item.unread
    ]
    alone = [f"{family.name}: one prompt, and batch 1: {family.one_row}" for family, _ in rows if family.one_row]
    text = (
        f"`tokens`: whether all {NEW_TOKENS} steps give those of `generate`. `present.*`: the greatest difference of a "
        f"tensor of the cache at any step. `grid`: of {POINTS} sizes, batch {_list(BATCHES)}, past {_list(PASTS)}, "
        f"query {_list(QUERIES)}, those where logits and cache are equal; a past of {max(PASTS)} exceeds every sliding "
        "window by half."
    )
    cells = tuple((*_compose_row(family, result), _compose_last(kind, result)) for family, result in rows)
    return Table(_TITLES[kind], text, (*columns, last), cells, not notes, (*notes, *alone, *unread, *refused))


def _compose_row(family: Family, result: FamilyResult) -> tuple[str, ...]:
    opening = (family.name, ", ".join(family.cache))
    if not result.components:
        return (*opening, "not exported", *(_NOTHING,) * 5)
    names = ", ".join(component.name for component in result.components)
    figures = (names, str(result.nodes), str(result.unattributed))
    if result.failure:
        return (*opening, *figures, "not run", *(_NOTHING,) * 2)
    generation = result.generation
    tokens = "equal" if generation.equal else f"other from step {generation.steps - 1}"
    return (*opening, *figures, tokens, f"{generation.worst:.1e}", f"{result.points} of {len(list_sizes(family))}")


def _compose_last(kind: str, result: FamilyResult) -> str:
    """What onnxruntime-genai makes of a decoder; of other models, what is lost."""
    if kind == "decoder":
        return "refused" if result.genai.startswith("refused") else result.genai or _NOTHING
    return ", ".join(result.absent) or ("nothing" if result.components else _NOTHING)


def _compose_networks(results: Sequence[FamilyResult]) -> Table:
    """A row for each file: they are compared with what the library computes, call by call."""
    rows = []
    for result in results:
        for component in result.components:
            worst = result.differences.get(component.name)
            shown = "not run" if worst is None else f"{worst:.1e}"
            rows.append((result.family, component.name, str(component.nodes), str(component.unattributed), shown))
    notes = [f"{result.family}: {fault}" for result in results for fault in result.list_faults()]
    absent = [f"{item.family}: in no file: {', '.join(item.absent)}" for item in results if item.absent]
    absent += [
        f"{item.family}: in no file, and not read by the model: {', '.join(item.unread)}"
        for item in results
        if item.unread
    ]
    text = "sentence-transformers and diffusers run, and what each network is given goes into its file as well."
    columns = ("folder", "file", "nodes", "none or fallback", "greatest difference")
    return Table("Networks that work together", text, columns, tuple(rows), not notes, (*notes, *absent))


def _compose_proofs(results: Sequence[FamilyResult]) -> Table:
    rows = []
    for result in results:
        proof = result.proof
        figures: tuple[str, ...] = (_NOTHING,) * 6
        if proof is not None:
            counts = (proof.nodes, proof.proved, proof.enclosed, proof.contradicted, proof.compute)
            figures = (*map(str, counts), percent(proof.compute_shown / proof.compute if proof.compute else 1.0))
        rows.append((result.family, *figures))
    notes = [f"{result.family}: {fault}" for result in results for fault in result.list_faults()]
    text = "`verify` on all files of a package. Compute nodes are those that make floats from the model's inputs."
    columns = ("family", "nodes", "proved", "enclosed", "contradicted", "compute nodes", "of them shown, %")
    return Table("Attributions, proved by values", text, columns, tuple(rows), not notes, tuple(notes))


def _list(sizes: Iterable[int]) -> str:
    return ", ".join(map(str, sizes))
