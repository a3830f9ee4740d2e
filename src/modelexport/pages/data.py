"""Everything that a page knows, as one document; `page.js` and its neighbours read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelexport.graph.edges import edges_of
from modelexport.pages.columns import Json, Texts
from modelexport.pages.difference import difference_columns
from modelexport.pages.flow_columns import FlowColumns, Places
from modelexport.pages.flow_edges import flows_of
from modelexport.pages.module_columns import call_columns, module_columns, weight_columns
from modelexport.pages.node_columns import Content, NodeColumns
from modelexport.pages.overlay_columns import cost_columns, profile_columns, verification_columns
from modelexport.pages.overlays import Overlay, Profiled, Verified
from modelexport.record.changes import Diff
from modelexport.record.cost import Cost

MOST_NODES = 50_000
_VERSION = 1


@dataclass(frozen=True)
class Subject:
    """A file, and what is said of it.

    facts     words and what they stand for, as in `exporter`, `dynamo`
    notes     whatever the reader should know beside what is shown
    cost      with the sizes that axes are taken to have
    overlays  the last of a kind is shown
    diff      from another file to this one
    """

    name: str
    content: Content
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    cost: Cost | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    overlays: Sequence[Overlay] = ()
    diff: Diff | None = None


def page_data(subject: Subject, *, nodes: bool = True) -> Json:
    """Without `nodes`, modules and what flows between them alone."""
    content, texts = subject.content, Texts([""])
    provenance = content.provenance
    rows = NodeColumns(content, texts)
    node_columns = rows.nodes() if nodes else None
    places = Places(content.tree, rows.numbers, rows.values, texts)
    edges = edges_of(content.graph)
    unmoved = {*provenance.nodes, *edges.values} - content.graph.computed
    drawn = FlowColumns(provenance, places, unmoved, own_nodes=nodes)
    flows = drawn.flows(flows_of(provenance, edges))
    return {
        "version": _VERSION,
        "file": {"name": subject.name, "nodes": len(provenance.nodes), "facts": list(map(list, subject.facts))},
        "notes": list(subject.notes),
        "modules": module_columns(content, texts),
        "calls": call_columns(provenance, content),
        "weights": weight_columns(content, texts),
        "nodes": node_columns,
        "answers": rows.answers(),
        "owners": rows.owners(),
        "evidence": rows.evidence(),
        "flows": flows,
        "layouts": drawn.layouts(),
        **dict(_overlaid(subject, rows.numbers if nodes else {}, texts)),
        "values": rows.value_columns(),
        "texts": texts.values,
    }


def _overlaid(subject: Subject, nodes: Mapping[str, int], texts: Texts) -> Iterator[tuple[str, Json]]:
    tree = subject.content.tree
    if subject.cost is not None:
        yield "cost", cost_columns(subject.cost, subject.sizes, tree, nodes)
    for overlay in subject.overlays:
        match overlay:
            case Profiled():
                yield "profile", profile_columns(overlay, tree, nodes)
            case Verified():
                yield "verification", verification_columns(overlay, tree, nodes, texts)
    if subject.diff is not None:
        entries = subject.content.provenance.nodes
        charged = {key: tree.place_of(entry.attribution) for key, entry in entries.items()}
        yield "difference", difference_columns(subject.diff, tree, texts, charged)
