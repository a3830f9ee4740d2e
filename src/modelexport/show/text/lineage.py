"""Lineage for people: what `relink`, `run-tool` and `quantize` say of the file that a tool made.

    251 nodes from bert.onnx: kept 213, rewritten 1, fused 25 (from 68), split 12
    attributions: exact 210 (83.7 %), strong 37 (14.7 %), inferred 4 (1.6 %)
    of 228 nodes before that work on the inputs, 228 live on

Then what speaks against it: nodes that nothing explains, edges in another order, weights that moved.
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from modelexport.errors import some_of
from modelexport.record.lineage import Consistency, Relation
from modelexport.record.results.files import QuantizeResult, RelinkResult
from modelexport.show.data.results import relations_of, tally_of
from modelexport.show.text.console import counted, file_lines, note_lines, plain, seconds_line, table
from modelexport.show.text.verification import verification_tables
from modelexport.show.text.verification_rows import Shown
from modelexport.show.text.written_files import confidences_text

_ASK_VERIFY = "`modelexport verify` holds what was found against values."


def lineage_lines(result: RelinkResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    if not result.related:
        why = result.lineage.kinship if result.lineage.nodes else "it has no nodes"
        yield plain(f"{result.after} was not made from {result.before}: {why}", "bold red")
        yield plain("Nothing was written. Give the tagged file that it was made from.")
        return
    yield from file_lines(result.files)
    for tool in result.idle:
        yield plain(f"{tool} changed nothing: graph, weights and shapes are as they were before it", "yellow")
    tally = tally_of(result.provenance)
    relations = ", ".join(_related(result, relation, count) for relation, count in relations_of(result).items())
    yield plain(f"{counted(tally.total, 'node')} from {result.before}: {relations}")
    yield plain(f"attributions: {confidences_text(tally)}")
    yield plain(_covered(result.lineage.consistency), "dim")
    yield from (plain(line, "yellow") for line in _doubts(result.lineage.consistency))
    if result.differing:
        yield plain(
            f"another version of the model: {counted(len(result.differing), 'weight')} with other numbers under the "
            f"same name ({some_of(result.differing)})",
            "bold red",
        )
    if verbose:
        yield from _changed(result)
        yield seconds_line(result.seconds)


def _related(result: RelinkResult, relation: Relation, count: int) -> str:
    sources = {key for link in result.lineage.nodes.values() if link.relation is relation for key in link.sources}
    several = relation in (Relation.FUSED, Relation.SHARED)
    return f"{relation} {count} (from {len(sources)})" if several else f"{relation} {count}"


def _changed(result: RelinkResult) -> Iterator[RenderableType]:
    """Every node that is not what it was, with its sources."""
    changed = {key: link for key, link in result.lineage.nodes.items() if link.relation is not Relation.KEPT}
    if not changed:
        return
    shown = table("", "node", "operator", "relation", "sources", "link")
    for key, link in changed.items():
        operator = result.provenance.nodes[key].op_type
        sources = ", ".join(link.sources)
        shown.add_row(
            plain(key), plain(operator, "cyan"), plain(str(link)), plain(sources), plain(link.confidence.label)
        )
    yield shown


def _covered(consistency: Consistency) -> str:
    parts = [f"{consistency.covered} live on"]
    if consistency.folded:
        parts.append(f"{len(consistency.folded)} became constants")
    if consistency.removed:
        were = "was" if len(consistency.removed) == 1 else "were"
        parts.append(f"{len(consistency.removed)} {were} removed ({some_of(consistency.removed)})")
    if consistency.unexplained:
        parts.append(
            f"{len(consistency.unexplained)} {'is' if len(consistency.unexplained) == 1 else 'are'} unexplained"
        )
    return f"of {counted(consistency.nodes, 'node')} before that work on the inputs, {', '.join(parts)}"


def _doubts(consistency: Consistency) -> Iterator[str]:
    """What speaks against a lineage, with what it may mean and what to do."""
    if consistency.unexplained:
        yield (
            f"note: no node after does the work of {some_of(consistency.unexplained)}, and nothing shows that it could "
            f"be left out. The tool changed what is computed there, or this was not found; {_ASK_VERIFY}"
        )
    if consistency.disorder:
        edges = [f"{reader} reads {maker}" for maker, reader in consistency.disorder]
        yield (
            f"note: in another order than before: {some_of(edges)}. Going by what they were traced back to, it was the "
            f"other way round. The tool moved them past each other, or a source is wrong; {_ASK_VERIFY}"
        )
    if consistency.strayed:
        yield (
            f"note: weights that were read elsewhere before are read by {some_of(consistency.strayed)}: none of the "
            f"nodes that this was traced back to read them. Its module may be wrong; {_ASK_VERIFY}"
        )


def quantization_lines(result: QuantizeResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    yield from lineage_lines(result.relinked, verbose=verbose)
    if result.excluded:
        yield plain(f"left in float as asked: {counted(len(result.excluded), 'node')}")
    if result.included is not None:
        yield plain(f"to be quantized, and nothing else: {counted(len(result.included), 'node')}")
    yield from note_lines(result.notes)
    if result.report is not None:
        yield plain("")
        yield from verification_tables(result.report, Shown(by_loss=True, verbose=verbose))
