"""What a relinked file comes from, for people and for programs.

The keys of `lineage_json` are a promise: they keep to `record/schema/lineage.schema.json`.

What a quantizer made of a file, for people and for programs.

The keys of `quantization_json` are a promise: they keep to `record/schema/quantization.schema.json`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.errors import some_of
from modelexport.inspect.analyze import Tally
from modelexport.record.lineage import Consistency, Lineage, Relation
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.record.results.verification import Verification
from modelexport.show.text.console import bytes_text, counted
from modelexport.show.text.written_files import confidences_text

if TYPE_CHECKING:
    from rich.console import RenderableType


_ASK_VERIFY = "`modelexport verify` holds what was found against values."


@dataclass(frozen=True)
class LineageSummary:
    """The parts of a relinking's result that are shown."""

    after: str
    before: str
    files: tuple[Path, ...]
    lineage: Lineage
    provenance: Provenance
    related: bool
    differing: tuple[str, ...]
    seconds: Mapping[str, float]
    idle: tuple[str, ...] = ()

    @property
    def tally(self) -> Tally:
        return Tally.of(entry.attribution for entry in self.provenance.nodes.values())

    @property
    def relations(self) -> dict[Relation, int]:
        counts = Counter(link.relation for link in self.lineage.nodes.values())
        return {relation: counts[relation] for relation in Relation if counts[relation]}


def lineage_lines(summary: LineageSummary, *, verbose: bool = False) -> Iterator[RenderableType]:
    from modelexport.show.text.console import plain

    if not summary.related:
        why = summary.lineage.kinship if summary.lineage.nodes else "it has no nodes"
        yield plain(f"{summary.after} was not made from {summary.before}: {why}", "bold red")
        yield plain("Nothing was written. Give the tagged file that it was made from.")
        return
    for path in summary.files:
        yield plain(f"wrote {path} ({bytes_text(path.stat().st_size)})")
    for tool in summary.idle:
        yield plain(f"{tool} changed nothing: graph, weights and shapes are as they were before it", "yellow")
    relations = ", ".join(_related(summary, relation, count) for relation, count in summary.relations.items())
    yield plain(f"{counted(summary.tally.total, 'node')} from {summary.before}: {relations}")
    yield plain(f"attributions: {confidences_text(summary.tally)}")
    yield plain(_covered(summary.lineage.consistency), "dim")
    yield from (plain(line, "yellow") for line in _doubts(summary.lineage.consistency))
    if summary.differing:
        yield plain(
            f"another version of the model: {counted(len(summary.differing), 'weight')} with other numbers under the "
            f"same name ({some_of(summary.differing)})",
            "bold red",
        )
    if verbose:
        yield from _changed(summary)
        yield plain(", ".join(f"{step} {seconds:.1f} s" for step, seconds in summary.seconds.items()), "dim")


def _related(summary: LineageSummary, relation: Relation, count: int) -> str:
    sources = {key for link in summary.lineage.nodes.values() if link.relation is relation for key in link.sources}
    several = relation in (Relation.FUSED, Relation.SHARED)
    return f"{relation} {count} (from {len(sources)})" if several else f"{relation} {count}"


def _changed(summary: LineageSummary) -> Iterator[RenderableType]:
    """Every node that is not what it was, with its sources."""
    from modelexport.show.text.console import plain, table

    changed = {key: link for key, link in summary.lineage.nodes.items() if link.relation is not Relation.KEPT}
    if not changed:
        return
    shown = table("", "node", "operator", "relation", "sources", "link")
    shown.title = None
    for key, link in changed.items():
        operator = summary.provenance.nodes[key].op_type
        sources = ", ".join(link.sources)
        shown.add_row(
            plain(key), plain(operator, "cyan"), plain(str(link)), plain(sources), plain(link.confidence.label)
        )
    yield shown


def lineage_json(summary: LineageSummary) -> str:
    lineage, tally = summary.lineage, summary.tally
    document = {
        "schema": 1,
        "after": summary.after,
        "before": summary.before,
        "related": summary.related,
        "kinship": {"after": round(lineage.kinship.after, 4), "before": round(lineage.kinship.before, 4)},
        "files": [str(path) for path in summary.files],
        "relations": {str(relation): count for relation, count in summary.relations.items()},
        "by_confidence": {level.label: count for level, count in tally.by_confidence.items()},
        "consistency": _consistency_document(lineage.consistency),
        "differing": list(summary.differing),
        "idle": list(summary.idle),
        "nodes": [
            {
                "key": key,
                "sources": list(link.sources),
                "relation": str(link.relation),
                "confidence": link.confidence.label,
                "modules": list(summary.provenance.nodes[key].attribution.modules),
            }
            for key, link in lineage.nodes.items()
        ],
        "seconds": {step: round(seconds, 3) for step, seconds in summary.seconds.items()},
    }
    return json.dumps(document, indent=1) + "\n"


def _consistency_document(found: Consistency) -> dict[str, object]:
    return {
        "nodes": found.nodes,
        "covered": found.covered,
        "folded": list(found.folded),
        "removed": list(found.removed),
        "unexplained": list(found.unexplained),
        "disorder": len(found.disorder),
        "disordered": [{"maker": maker, "reader": reader} for maker, reader in found.disorder],
        "strayed": list(found.strayed),
    }


def _covered(found: Consistency) -> str:
    told = [f"{found.covered} live on"]
    if found.folded:
        told.append(f"{len(found.folded)} became constants")
    if found.removed:
        told.append(
            f"{len(found.removed)} {'was' if len(found.removed) == 1 else 'were'} removed ({some_of(found.removed)})"
        )
    if found.unexplained:
        told.append(f"{len(found.unexplained)} {'is' if len(found.unexplained) == 1 else 'are'} unexplained")
    return f"of {counted(found.nodes, 'node')} before that work on the inputs, {', '.join(told)}"


def _doubts(found: Consistency) -> Iterator[str]:
    """What speaks against a lineage, with what it may mean and what to do."""
    if found.unexplained:
        yield (
            f"note: no node after does the work of {some_of(found.unexplained)}, and nothing shows that it could be "
            f"left out. The tool changed what is computed there, or this was not found; {_ASK_VERIFY}"
        )
    if found.disorder:
        edges = [f"{reader} reads {maker}" for maker, reader in found.disorder]
        yield (
            f"note: in another order than before: {some_of(edges)}. Going by what they were traced back to, it was the "
            f"other way round. The tool moved them past each other, or a source is wrong; {_ASK_VERIFY}"
        )
    if found.strayed:
        yield (
            f"note: weights that were read elsewhere before are read by {some_of(found.strayed)}: none of the nodes "
            f"that this was traced back to read them. Its module may be wrong; {_ASK_VERIFY}"
        )


if TYPE_CHECKING:
    from rich.console import RenderableType

QUANTIZATION_SCHEMA = 1


@dataclass(frozen=True)
class QuantizationSummary:
    lineage: LineageSummary
    excluded: tuple[NodeEntry, ...]
    included: tuple[NodeEntry, ...] | None
    notes: tuple[str, ...]
    report: Verification | None


def quantization_lines(summary: QuantizationSummary, *, verbose: bool = False) -> Iterator[RenderableType]:
    from modelexport.show.text.console import plain

    yield from lineage_lines(summary.lineage, verbose=verbose)
    if summary.excluded:
        yield plain(f"left in float as asked: {counted(len(summary.excluded), 'node')}")
    if summary.included is not None:
        yield plain(f"to be quantized, and nothing else: {counted(len(summary.included), 'node')}")
    for note in summary.notes:
        yield plain(f"note: {note}", "yellow")
    if summary.report is not None:
        from modelexport.show.text.verification import verification_tables
        from modelexport.show.text.verification_rows import Shown

        yield plain("")
        yield from verification_tables(summary.report, Shown(by_loss=True, verbose=verbose))


def quantization_json(summary: QuantizationSummary) -> str:
    """The lineage and the report are as `relink` and `verify` write them."""
    from modelexport.show.data.verification_and_diff import verification_json

    included = summary.included
    document = {
        "schema": QUANTIZATION_SCHEMA,
        "lineage": json.loads(lineage_json(summary.lineage)),
        "excluded": [_node(entry) for entry in summary.excluded],
        "included": None if included is None else [_node(entry) for entry in included],
        "notes": list(summary.notes),
        "report": None if summary.report is None else json.loads(verification_json(summary.report)),
    }
    return json.dumps(document, indent=1) + "\n"


def _node(entry: NodeEntry) -> dict[str, str | None]:
    return {"name": entry.name, "key": entry.key, "op_type": entry.op_type, "module": entry.attribution.module}
