"""Everything that a page knows, as one document; `page.js` and its neighbours read it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelexport.graph.edges import edges_of
from modelexport.pages.columns import Json, Texts
from modelexport.pages.flow_columns import FlowColumns, Places
from modelexport.pages.flow_edges import flows_of
from modelexport.pages.module_columns import call_columns, module_columns, weight_columns
from modelexport.pages.node_columns import Content, NodeColumns

MOST_NODES = 50_000
_VERSION = 1


@dataclass(frozen=True)
class Subject:
    """A file and what is said of it at the head of the page.

    facts  words and what they stand for, as in `exporter`, `dynamo`
    notes  whatever the reader should know beside what is shown
    """

    name: str
    content: Content
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()


def page_data(subject: Subject, *, nodes: bool = True) -> Json:
    """Without `nodes`, modules and what flows between them alone."""
    content, texts = subject.content, Texts([""])
    provenance = content.provenance
    rows = NodeColumns(content, texts)
    node_columns = rows.nodes() if nodes else None
    places = Places(content.tree, rows.numbers, rows.values, texts)
    drawn = FlowColumns(provenance, places, own_nodes=nodes)
    flows = drawn.flows(flows_of(provenance, edges_of(content.graph)))
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
        "values": rows.value_columns(),
        "texts": texts.values,
    }
