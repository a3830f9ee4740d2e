"""What a query found: names for scripts, a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from modelexport.errors import printable
from modelexport.record.lineage import Relation, descent_of
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.show.text.console import confidence_text, plain, table

QUERY_SCHEMA = 1


def query_names(nodes: Sequence[NodeEntry], provenance: Provenance) -> str:
    """One line for each node: its name, or its key where the name does not say which node is meant."""
    label = _labels(provenance)
    return "".join(f"{printable(label(entry))}\n" for entry in nodes)


def query_table(nodes: Sequence[NodeEntry], provenance: Provenance) -> Iterator[RenderableType]:
    if nodes:
        label = _labels(provenance)
        # A column in which nothing stands is left out: not every record knows roles.
        roles = any(entry.attribution.role for entry in nodes)
        layers = any(entry.attribution.layer_id is not None for entry in nodes)
        changed = any(_relation(entry) not in ("", Relation.KEPT) for entry in nodes)
        optional = [name for name, shown in (("role", roles), ("layer", layers), ("relation", changed)) if shown]
        shown = table("", "node", "operator", "module", *optional, "tag", "confidence", right=("layer",))
        shown.title = None
        for entry in nodes:
            found = entry.attribution
            texts = {"role": found.role, "layer": _number(found.layer_id), "relation": _relation(entry)}
            shown.add_row(
                plain(label(entry)),
                plain(entry.op_type, "cyan"),
                plain(" + ".join(owner or "(model)" for owner in found.modules) or found.reason),
                *(plain(texts[column]) for column in optional),
                plain(provenance.tag(found)),
                confidence_text(found.confidence),
            )
        yield shown
        yield Text()
    yield Text(f"{len(nodes)} of {len(provenance.nodes)} nodes", "dim")


def query_json(query: str, nodes: Sequence[NodeEntry], provenance: Provenance) -> str:
    document = {
        "schema": QUERY_SCHEMA,
        "query": query,
        "total": len(provenance.nodes),
        "count": len(nodes),
        "nodes": [_node(entry, provenance) for entry in nodes],
    }
    return json.dumps(document, indent=1) + "\n"


def _node(entry: NodeEntry, provenance: Provenance) -> dict[str, Any]:
    found, descent = entry.attribution, descent_of(entry.attribution)
    item: dict[str, Any] = {
        "name": entry.name,
        "key": entry.key,
        "op_type": entry.op_type,
        "module": found.module,
        "modules": list(found.modules),
        "tag": provenance.tag(found),
        "role": found.role or None,
        "layer": found.layer_id,
        "relation": None if descent is None else str(descent.relation),
        "sources": None if descent is None else descent.sources,
        "confidence": found.confidence.label,
        "evidence": [str(item) for item in found.evidence],
    }
    return item | {"reason": found.reason} if found.reason else item


def _labels(provenance: Provenance) -> Callable[[NodeEntry], str]:
    counts = Counter(entry.name for entry in provenance.nodes.values())

    def label(entry: NodeEntry) -> str:
        other = entry.name in provenance.nodes and entry.name != entry.key
        return entry.key if not entry.name or counts[entry.name] > 1 or other else entry.name

    return label


def _relation(entry: NodeEntry) -> str:
    found = descent_of(entry.attribution)
    return "" if found is None else str(found)


def _number(number: int | None) -> str:
    return "" if number is None else str(number)
