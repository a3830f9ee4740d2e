"""Nearby matches: where onnxscript's patterns can match at all, found without looking through the whole graph.

    refuse_by_operator   a rule                             only at nodes of the operator that its pattern ends in
    match_nearby         a pattern with several outputs     only on nodes that read what the first output reads
    follow_graph         the order of those nodes           from the way that the rewriter takes through a graph

Every function takes the original and gives what works in its place (linear_optimizer.py puts it there). What onnxscript
would choose among several matches depends on their order, so that order is kept. A search that fails is made again by
the original.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from onnxscript.rewriter import _basics, _matcher, _pattern_ir, _rewrite_rule

from modelexport.capture.isolation import Patch

_Container = ir.Graph | ir.Function
_Operator = tuple[str, str]


def rewriter_patches() -> list[Patch]:
    """For one optimization of one model."""
    search = _Search()
    return [
        (_rewrite_rule.RewriteRuleSet, "_apply_to_graph_or_function", search.follow_graph),
        (_rewrite_rule.RewriteRule, "try_rewrite", search.refuse_by_operator),
        (_matcher.SimplePatternMatcher, "match", search.match_nearby),
    ]


class _Position:
    """Where the rewriter is in one graph; it knows the order of nodes without walking through the graph.

    The rewriter goes from the first node to the last, and puts new nodes right behind the one that it is at. So what it
    has seen is in the order of its visits; then come new nodes, the last ones put in first, and then what was there.
    """

    def __init__(self, graph: _Container) -> None:
        self.current: ir.Node | None = None
        self._at_start = {node: number for number, node in enumerate(graph)}
        self._visits: dict[ir.Node, int] = {}
        self._waiting: list[ir.Node] = []

    def visit(self, node: ir.Node) -> None:
        self.current = node
        self._visits.setdefault(node, len(self._visits))

    def put_in(self, nodes: Iterable[ir.Node]) -> None:
        waiting = (node for node in self._waiting if node not in self._visits and node.graph is not None)
        self._waiting = [*nodes, *waiting]

    def in_order(self, nodes: Iterable[ir.Node]) -> list[ir.Node]:
        return sorted(nodes, key=self._place)

    def _place(self, node: ir.Node) -> tuple[int, int]:
        if node in self._visits:
            return 0, self._visits[node]
        if node in self._at_start:
            return 2, self._at_start[node]
        return 1, self._waiting.index(node)


class _Search:
    """What takes the place of three functions of onnxscript while one model is optimized."""

    def __init__(self) -> None:
        # Of the graph that is rewritten and of those around it, innermost last.
        self._positions: list[_Position] = []
        self._operators: dict[_rewrite_rule.RewriteRule, _Operator | None] = {}

    def follow_graph(self, apply: Callable[..., int]) -> Callable[..., int]:
        def apply_and_follow(
            rules: _rewrite_rule.RewriteRuleSet, model: ir.Model, graph: _Container, **options: Any
        ) -> int:
            self._positions.append(_Position(graph))
            try:
                return apply(rules, model, graph, **options)
            finally:
                self._positions.pop()

        return apply_and_follow

    def refuse_by_operator(self, try_rewrite: Callable[..., Any]) -> Callable[..., Any]:
        operators = self._operators

        def rewrite_unless_refused(
            rule: _rewrite_rule.RewriteRule, model: ir.Model, graph: _Container, node: ir.Node, **options: Any
        ) -> Any:
            if not self._positions or options.get("tracer") is not None:
                return try_rewrite(rule, model, graph, node, **options)
            position = self._positions[-1]
            if node is not position.current:
                position.visit(node)
            if rule not in operators:
                operators[rule] = _last_operator(rule)
            operator = operators[rule]
            if operator is not None and operator != (node.domain, node.op_type):
                return None
            delta = try_rewrite(rule, model, graph, node, **options)
            if delta is not None:
                position.put_in(delta.new_nodes)
            return delta

        return rewrite_unless_refused

    def match_nearby(self, match: Callable[..., _basics.MatchResult]) -> Callable[..., _basics.MatchResult]:
        def match_whole_or_nearby(
            matcher: _matcher.SimplePatternMatcher, model: ir.Model, graph: _Container, node: ir.Node, **options: Any
        ) -> _basics.MatchResult:
            if not matcher.pattern.has_single_output_node and options.get("tracer") is None:
                # Nothing has been changed by a search that fails, whatever the reason.
                with suppress(Exception):
                    matcher._tracer = None
                    matcher._graph = graph if isinstance(graph, ir.Graph) else graph.graph
                    neighborhood = _Neighborhood(matcher, self._positions[-1], options.get("verbose") or 0)
                    return neighborhood.first_match(node, options.get("remove_nodes", True))
            return match(matcher, model, graph, node, **options)

        return match_whole_or_nearby


def _last_operator(rule: _rewrite_rule.RewriteRule) -> _Operator | None:
    """Domain and type of the node that a rule begins with; None if they may be several."""
    matcher = rule._matcher
    if type(matcher) is not _matcher.SimplePatternMatcher:
        return None
    last = matcher.pattern.output_nodes[0]
    fixed = _pattern_ir.StringConstantPattern
    if isinstance(last.domain, fixed) and isinstance(last.op, fixed):
        return last.domain.value(), last.op.value()
    return None


@dataclass(frozen=True)
class _Neighborhood:
    """A search for one pattern with several outputs, around one node that may be the first of them."""

    matcher: _matcher.SimplePatternMatcher
    position: _Position
    verbose: int

    def first_match(self, node: ir.Node, removable: bool) -> _basics.MatchResult:
        """Of all combinations of nodes that can match, in the order of onnxscript."""
        if sum(pattern.op_identifier() is None for pattern in self.matcher.pattern.output_nodes[1:]) > 1:
            raise LookupError("of outputs that come from any operator, onnxscript finds one at most")
        for nodes in self._combinations((node,)):
            self.matcher._init_match(self.verbose)
            match = self.matcher._multi_match(nodes, check_removable=removable)
            if match:
                return match
        return _basics.MatchResult().fail("No match found.")

    def _combinations(self, nodes: tuple[ir.Node, ...]) -> Iterator[tuple[ir.Node, ...]]:
        """A node for each output, beginning with those that are given; none if these do not match."""
        outputs = self.matcher.pattern.output_nodes
        self.matcher._init_match(self.verbose)
        if not all(self.matcher._match_node(pattern, node) for pattern, node in zip(outputs, nodes, strict=False)):
            return
        if len(nodes) == len(outputs):
            yield nodes
            return
        for candidate in self.position.in_order(self._candidates(outputs[len(nodes)], self.matcher._match)):
            yield from self._combinations((*nodes, candidate))

    def _candidates(self, pattern: _pattern_ir.NodePattern, match: _basics.MatchResult) -> list[ir.Node]:
        """Nodes that read what an input of the pattern is known to be, directly or by way of other nodes of it."""
        identifier = pattern.op_identifier()
        readers = []
        for index, wanted in enumerate(pattern.inputs):
            values = self._possible_values(wanted, match)
            if values is not None:
                uses = (use for value in values for use in value.uses() if use.idx == index)
                readers.append(dict.fromkeys(use.node for use in uses if use.node.graph is self.matcher._graph))
        if not readers:
            raise LookupError("nothing that the output reads is known")
        return [node for node in min(readers, key=len) if identifier is None or node.op_identifier() == identifier]

    def _possible_values(
        self, pattern: _pattern_ir.ValuePattern | None, match: _basics.MatchResult
    ) -> list[ir.Value] | None:
        """What may be in the place of an input of the pattern; None if that may be anything."""
        if pattern is None:
            return None
        bound = match.value_bindings.get(pattern) if pattern.name is None else match.bindings.get(pattern.name)
        if isinstance(bound, ir.Value):
            return [bound]
        if not isinstance(pattern, _pattern_ir.NodeOutputPattern):
            return None
        try:
            makers = self._candidates(pattern.producer(), match)
        except LookupError:
            return None
        index = pattern.output_index
        return [maker.outputs[index] for maker in makers if index < len(maker.outputs)]
