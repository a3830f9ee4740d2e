"""Answers of `query` for people and scripts: a table of nodes, or one name on each line.

node          operator  module                             role             tag           confidence
node_linear   MatMul    encoder.layer.0.attention.self.query  attention.query  /BertModel/…  strong

1 of 288 nodes
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.text import Text

from modelexport.errors import printable
from modelexport.inspect.query.answer import Answer
from modelexport.record.lineage import Relation, descent_of
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.show.text.console import confidence_text, plain, table


def query_names(answer: Answer) -> str:
    """One line for each node: its name, or its key where the name does not say which node is meant."""
    label = _labels(answer.provenance)
    return "".join(f"{printable(label(entry))}\n" for entry in answer.nodes)


def query_table(answer: Answer) -> Iterator[RenderableType]:
    nodes, provenance = answer.nodes, answer.provenance
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
            attribution = entry.attribution
            texts = {"role": attribution.role, "layer": _number(attribution.layer_id), "relation": _relation(entry)}
            shown.add_row(
                plain(label(entry)),
                plain(entry.op_type, "cyan"),
                plain(" + ".join(owner or "(model)" for owner in attribution.modules) or attribution.reason),
                *(plain(texts[column]) for column in optional),
                plain(provenance.tag(attribution)),
                confidence_text(attribution.confidence),
            )
        yield shown
        yield Text()
    yield Text(f"{len(nodes)} of {len(provenance.nodes)} nodes", "dim")


def _labels(provenance: Provenance) -> Callable[[NodeEntry], str]:
    counts = Counter(entry.name for entry in provenance.nodes.values())

    def label(entry: NodeEntry) -> str:
        other = entry.name in provenance.nodes and entry.name != entry.key
        return entry.key if not entry.name or counts[entry.name] > 1 or other else entry.name

    return label


def _relation(entry: NodeEntry) -> str:
    descent = descent_of(entry.attribution)
    return "" if descent is None else str(descent)


def _number(number: int | None) -> str:
    return "" if number is None else str(number)
