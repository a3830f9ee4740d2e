"""Scores: a file that a tool made is relinked with and without its names, and held against the truth and the values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property
from typing import Any

import onnx

from measure.lineage.hold_out import hide
from measure.lineage.truth import Truth, Values
from measure.lineage.value_comparison import Comparer
from modelexport.graph.file.reading import parse_model
from modelexport.graph.file.tagged_file import Ancestor
from modelexport.graph.index import Graph, Node, index_model
from modelexport.graph.outline import digested, sketches_of
from modelexport.lineage.descent import trace_lineage
from modelexport.lineage.inherit import inherit_record
from modelexport.record.lineage import Lineage
from modelexport.record.provenance import Confidence, Provenance

# Names that are hidden: none, half of them, nearly all.
SHARES = (0.0, 0.5, 0.9)


class ToolOutcome(StrEnum):
    """
    OK       the tool ran, ONNX Runtime runs what it made, and the outputs are as before
    FAILED   the tool raised an error, or brought its process down
    BROKEN   ONNX Runtime cannot run what it made
    CHANGED  it runs, and returns other numbers, though the tool is not meant to change any
    REFUSED  torch does not export the model, or ONNX Runtime does not run it: there is nothing to run tools on
    """

    OK = "ok"
    FAILED = "failed"
    BROKEN = "broken"
    CHANGED = "changed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Score:
    """How much was found with a share of names hidden.

    nodes         all nodes but literals
    empty         those without a source
    scored        nodes whose name was hidden, and is known from the file; with nothing hidden, all
    contains      those whose true node is among their sources
    told          scored nodes whose module can be told from names
    module        those that are credited to it
    several       nodes that do the work of several modules, by names
    one_only      those that are credited to one module alone
    judged        nodes credited with confidence (`strong` or more) of which it is known who can have a part in them
    too_wide      those that are credited to a module which has none
    compared      nodes whose result can be compared with that of a source
    contradicted  those that make something else
    drifted       nodes that a tool of few bits makes less like themselves than like others: not compared
    """

    nodes: int = 0
    empty: int = 0
    scored: int = 0
    contains: int = 0
    told: int = 0
    module: int = 0
    several: int = 0
    one_only: int = 0
    judged: int = 0
    too_wide: int = 0
    compared: int = 0
    contradicted: int = 0
    drifted: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(getattr(self, item.name) + getattr(other, item.name) for item in fields(Score)))


@dataclass(frozen=True)
class ToolResult:
    """What became of one model after one chain of tools.

    message   what the tool or ONNX Runtime said, where it is not ok
    scores    by the share of names that was hidden
    planted   whether the record inside the file survived
    alone     nodes that get the same modules from the record inside, of all nodes
    wrong     some lines about what was not found
    """

    row: str
    exporter: str
    chain: str
    outcome: ToolOutcome
    message: str = ""
    scores: Mapping[float, Score] = field(default_factory=dict)
    planted: bool = False
    alone: tuple[int, int] = (0, 0)
    wrong: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        scores = {
            str(share): [getattr(score, item.name) for item in fields(Score)] for share, score in self.scores.items()
        }
        return {**vars(self), "scores": scores}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ToolResult:
        scores = {float(share): Score(*counts) for share, counts in content["scores"].items()}
        outcome, alone, wrong = ToolOutcome(content["outcome"]), tuple(content["alone"]), tuple(content["wrong"])
        return cls(**{**content, "scores": scores, "outcome": outcome, "alone": alone, "wrong": wrong})


def sum_scores(results: Iterable[ToolResult], share: float) -> Score:
    return sum((result.scores[share] for result in results if share in result.scores), Score())


@dataclass(frozen=True)
class Relinked:
    graph: Graph
    lineage: Lineage
    record: Provenance


def relink_model(ancestor: Ancestor, model: onnx.ModelProto) -> Relinked:
    file = parse_model(model.SerializeToString())
    graph = file.graph
    lineage = trace_lineage(ancestor.graph, digested(graph), (ancestor.sketches, sketches_of(file)))
    return Relinked(graph, lineage, inherit_record(ancestor.record, lineage, graph, "measure"))


Relinker = Callable[[Ancestor, onnx.ModelProto], Relinked]


class Scorer:
    """
    wrong  a line about each node that was not found, is credited wrongly or makes something else
    """

    def __init__(
        self,
        ancestor: Ancestor,
        made: onnx.ModelProto,
        values: tuple[Values, Values],
        *,
        lossy: bool,
        relinker: Relinker = relink_model,
    ) -> None:
        """
        values    of both graphs, by their own names; of a file that cannot be run, none
        relinker  who is scored
        """
        self._relinker = relinker
        self._ancestor, self._made, self._values, self._lossy = ancestor, made, values, lossy
        self._after = index_model(made)
        self._truth = Truth((ancestor.graph, values[0]), (self._after, values[1]), ancestor.record)
        self.wrong: list[str] = []

    @cached_property
    def named(self) -> Relinked:
        """With all names that values have."""
        return self._relinker(self._ancestor, hide(self._made, 0.0).model)

    def score(self, share: float) -> Score:
        """With a share of names hidden."""
        hidden = hide(self._made, share)
        relinked = self._relinker(self._ancestor, hidden.model) if share else self.named
        total = Score()
        for node, other in self._pairs(relinked):
            counts = not share or node.outputs[0].rpartition("|")[2] in hidden.names
            total += self._linked(share, node, relinked.lineage, other)
            total += self._placed(share, node, relinked, other) if counts else Score()
            total += self._credited(share, node, relinked.record, other)
            total += self._bounded(share, node, relinked.record, other)
        return replace(total, **self._compared(share, relinked)) if self._values[1] else total

    def _pairs(self, relinked: Relinked) -> Iterator[tuple[Node, Node]]:
        """Every node with its names, and the same one as it was relinked. Literals are data."""
        for node, other in zip(self._after.nodes, relinked.graph.nodes, strict=True):
            if node.op_type != "Constant" and node.outputs:
                yield node, other

    def _linked(self, share: float, node: Node, lineage: Lineage, other: Node) -> Score:
        empty = not lineage.nodes[other.key].sources
        if empty:
            self._say(share, node, "no source")
        return Score(nodes=1, empty=int(empty))

    def _placed(self, share: float, node: Node, relinked: Relinked, other: Node) -> Score:
        origin = self._truth.origin(node)
        if origin is None:
            return Score()
        link = relinked.lineage.nodes[other.key]
        contains = not self._truth.origins(node).isdisjoint(link.sources)
        wanted = self._truth.modules(node)
        credited = relinked.record.nodes[other.key].attribution.ancestor
        possible = {*wanted, self._truth.merged(node, link.sources)} if wanted else set()
        module = credited is not None and credited in possible
        if not contains:
            self._say(share, node, f"is {origin.op_type} {origin.key}, not {link.relation} from {link.sources[:3]}")
        elif wanted and not module:
            self._say(
                share, node, f"is in {'/'.join(map(str, wanted))}, not {credited} ({link.relation} {link.sources[:4]})"
            )
        return Score(scored=1, contains=int(contains), told=int(bool(wanted)), module=int(module))

    def _credited(self, share: float, node: Node, record: Provenance, other: Node) -> Score:
        owners = self._truth.owners(node)
        if len(owners) < 2 or not self._values[1]:
            return Score()  # names alone do not tell what a quantizer does in the place of an activation
        alone = len(record.nodes[other.key].attribution.owners) == 1
        if alone:
            credited = record.nodes[other.key].attribution.owners[0]
            self._say(share, node, f"works for {', '.join(sorted(map(str, owners)))}, credited to {credited} alone")
        return Score(several=1, one_only=int(alone))

    def _bounded(self, share: float, node: Node, record: Provenance, other: Node) -> Score:
        attribution = record.nodes[other.key].attribution
        contributors = self._truth.contributors(node)
        if attribution.confidence < Confidence.STRONG or not contributors:
            return Score()
        others = set(attribution.owners) - contributors
        if others:
            self._say(share, node, f"is no work of {', '.join(sorted(map(str, others))[:3])} (too wide)")
        return Score(judged=1, too_wide=int(bool(others)))

    def _compared(self, share: float, relinked: Relinked) -> dict[str, int]:
        """Names are hidden, so that values are found through the nodes that make them."""
        names = {other.key: node for node, other in self._pairs(relinked)}
        before, after = self._values
        renamed = {key: after[node.key] for key, node in names.items() if node.key in after}
        left = {key: node.key for key, node in names.items()}
        comparer = Comparer((self._ancestor.graph, before), (relinked.graph, renamed), left, lossy=self._lossy)
        comparison = comparer.compare(relinked.lineage)
        for key in comparison.contradicted:
            link = relinked.lineage.nodes[key]
            self._say(share, names[key], f"makes other values than {link.sources[:3]} ({link.relation})")
        return {
            "compared": comparison.compared,
            "contradicted": len(comparison.contradicted),
            "drifted": comparison.drifted,
        }

    def _say(self, share: float, node: Node, what: str) -> None:
        self.wrong.append(f"{share:.0%}: {node.op_type} {node.key}: {what}")
