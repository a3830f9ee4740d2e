"""Segments: the nodes between two cuts of the trunk, and what is multiplied in each.

    cut            where                                      the segment that ends there
    join           a shortcut ends: `x + f(x)`                residual: f, and what is in the shortcut
    fork           a shortcut begins that is no join          a stretch: stem, downsampling, or the norm behind a join

A node belongs to the segment whose end is the only one that is made of it. What several are made of belongs to the
first of them if it is made of what that one starts from (a skip of a U-Net), and to none otherwise (a mask, an angle).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from modelexport.attribute.roles.value_origins import RoleFlow
from modelexport.attribute.sources.shortcuts import (
    Join,
    ShortcutFinder,
    is_weighted,
    operands_of,
    order_canonically,
    reads_of,
)
from modelexport.graph.constants import integer, integers
from modelexport.graph.index import Node
from modelexport.graph.operators import CONVOLUTIONS, family

# Fewer are no layer: a row of single convolutions is a network without layers.
FEWEST_PRODUCTS = 2

Token = tuple[object, ...]


@dataclass
class Segment:
    """A part of the trunk.

    start, end  the cuts; no start where nothing was cut before
    join        for a residual segment
    members     its nodes in canonical order
    products    the members that multiply with weights, those in the shortcut left out
    """

    number: int
    end: str
    start: str = ""
    join: Join | None = None
    members: list[Node] = field(default_factory=list)
    products: list[Node] = field(default_factory=list)
    token: Token = ()
    sizes: Token = ()
    tail: tuple[str, ...] = ()

    @property
    def is_residual(self) -> bool:
        return self.join is not None and not self.join.puts_beside


@dataclass(frozen=True)
class Trunk:
    """Segments in canonical order of their ends, and the number of the segment of every node that is in one.

    before  by segment: the one that ends where it starts
    """

    flow: RoleFlow
    order: Sequence[Node]
    segments: Sequence[Segment]
    number_of: Mapping[str, int]

    @property
    def head_number(self) -> int:
        """The number of what is behind all segments."""
        return len(self.segments)

    @cached_property
    def position(self) -> Mapping[str, int]:
        """By node key: its place in canonical order."""
        return {node.key: index for index, node in enumerate(self.order)}

    @cached_property
    def before(self) -> Mapping[int, int]:
        ends = {segment.end: segment.number for segment in self.segments}
        return {segment.number: ends[segment.start] for segment in self.segments if segment.start in ends}


def cut_trunk(flow: RoleFlow) -> Trunk:
    order = order_canonically(flow.graph)
    finder = ShortcutFinder(flow, order)
    joins = finder.find()
    segments = _make_segments(flow, order, joins)
    number_of = _assign_nodes(flow, order, segments)
    for node in order:
        number = number_of.get(node.key, len(segments))
        if number < len(segments):
            segments[number].members.append(node)
    for segment in segments:
        describe_products(flow, segment, _find_nodes_of_shortcut(flow, segment))
    return Trunk(flow, order, segments, number_of)


def describe_products(flow: RoleFlow, segment: Segment, beside: frozenset[str] = frozenset()) -> None:
    """Fill in what is multiplied in a segment; `beside` is left out."""
    segment.products = [node for node in segment.members if is_weighted(flow, node) and node.key not in beside]
    segment.token = _describe(flow, segment)
    segment.sizes = tuple(_weight_shape(flow, node) for node in segment.products)


def _make_segments(flow: RoleFlow, order: Sequence[Node], joins: Sequence[Join]) -> list[Segment]:
    by_value = {join.value: join for join in joins}
    cuts = {join.value for join in joins} | {join.fork for join in joins}
    segments: list[Segment] = []
    # By value: the last cut that it is made of, with its position.
    last: dict[str, tuple[int, str]] = {value: (-1, value) for value in flow.graph.inputs if value in cuts}
    for position, node in enumerate(order):
        reads = reads_of(flow.graph, node)
        cut_before = max((last[value] for value in reads if value in last), default=(-1, ""))
        last.update((output, cut_before) for output in node.outputs if output and cut_before[1])
        for output in node.outputs:
            if output in cuts:
                join = by_value.get(output)
                start = join.fork if join is not None and not join.puts_beside else cut_before[1]
                segments.append(Segment(len(segments), output, start, join))
                last[output] = (position, output)
        if any(output in cuts for output in node.outputs):
            last.update((output, (position, _cut_of(node, cuts))) for output in node.outputs if output)
    return segments


def _cut_of(node: Node, cuts: set[str]) -> str:
    return next(output for output in node.outputs if output in cuts)


def _assign_nodes(flow: RoleFlow, order: Sequence[Node], segments: Sequence[Segment]) -> dict[str, int]:
    """By node key: the number of its segment; that behind the last for what only outputs are made of."""
    ends = {segment.end: segment.number for segment in segments}
    behind = len(segments)
    first: dict[str, int] = {}
    shared: set[str] = set()
    for node in reversed(order):
        own = [ends[output] for output in node.outputs if output in ends]
        if own:
            first[node.key] = own[0]
            continue
        readers = [reader for output in node.outputs for reader in _main_readers(flow, output)]
        numbers = {first[reader.key] for reader in readers if reader.key in first}
        first[node.key] = min(numbers, default=behind)
        if len(numbers) > 1 or any(reader.key in shared for reader in readers):
            shared.add(node.key)
    number_of = {node.key: first[node.key] for node in order if node.key not in shared}
    for node in order:
        number = first[node.key]
        if node.key in shared and number < behind and _is_made_inside(flow, node, segments[number], number_of):
            number_of[node.key] = number
    for node in reversed(order):  # constants of what was found to be inside
        if node.key not in number_of:
            numbers_read = {
                number_of.get(reader.key) for value in node.outputs for reader in _main_readers(flow, value)
            }
            common = numbers_read.pop() if len(numbers_read) == 1 else None
            if common is not None:
                number_of[node.key] = common
    return number_of


def _is_made_inside(flow: RoleFlow, node: Node, segment: Segment, number_of: Mapping[str, int]) -> bool:
    """Whether a node reads what its segment starts from, or something that was made of that."""
    reads = reads_of(flow.graph, node)
    makers = (flow.graph.producers[value] for value in reads if value in flow.graph.producers)
    inside = (maker for maker in makers if number_of.get(maker.key) == segment.number)
    # Constants and weights are inside too, but nothing is made of the start by reading them.
    return segment.start in reads or any(_varies(flow, maker) for maker in inside)


def _varies(flow: RoleFlow, node: Node) -> bool:
    return node.operator != "Constant" and bool(set(node.inputs) - flow.graph.initializers.keys())


def _main_readers(flow: RoleFlow, value: str) -> list[Node]:
    """Readers in the main graph; for what a body reads, the node that holds the body."""
    readers = []
    for reader in flow.graph.consumers.get(value, ()):
        outermost = [reader, *flow.graph.enclosing_nodes(reader)][-1]
        readers.append(outermost)
    return readers


def _find_nodes_of_shortcut(flow: RoleFlow, segment: Segment) -> frozenset[str]:
    """Nodes that lead from the fork to the join by one product and nothing beside it: what the shortcut holds."""
    if not segment.is_residual or segment.join is None:
        return frozenset()
    # By value that is made of the fork alone: the value before, and how many products there are from the fork on.
    before = {segment.join.fork: ("", 0)}
    for node in segment.members:
        computed = [value for value in node.inputs if value in flow.graph.computed]
        if len(computed) == 1 and computed[0] in before:
            products = before[computed[0]][1] + (node.key in flow.products)
            before.update((output, (computed[0], products)) for output in node.outputs if output not in before)
    beside: set[str] = set()
    for operand in operands_of(segment.join.node):
        value = operand
        if before.get(operand, ("", 0))[1] == 1:
            while value != segment.join.fork and (key := flow.graph.producers[value].key) not in beside:
                beside.add(key)
                value = before[value][0]
    return frozenset(beside)


def _describe(flow: RoleFlow, segment: Segment) -> Token:
    """The products with weights, and how many products of two computed values there are: two make an attention."""
    unweighted = sum(node.key in flow.products and not is_weighted(flow, node) for node in segment.members)
    return unweighted, *(_describe_product(flow, node) for node in segment.products)


def _describe_product(flow: RoleFlow, node: Node) -> tuple[object, ...]:
    """The kind of a product, sizes left out: `("Conv", True, False)` for a kernel of more than one, in one group."""
    shape = _weight_shape(flow, node)
    if node.operator not in CONVOLUTIONS:
        return (family(node.operator),)
    kernel = shape[2:] or integers(node, "kernel_shape")
    return family(node.operator), any(size > 1 for size in kernel), integer(node, "group", 1) > 1


def width_of(flow: RoleFlow, node: Node) -> int:
    """How many channels a product makes; 0 if the file does not say."""
    shape = _weight_shape(flow, node)
    if not shape:
        return integer(node, "N")
    if family(node.operator) == "ConvTranspose":
        return shape[1] * integer(node, "group", 1)
    return shape[0] if node.operator in CONVOLUTIONS or integer(node, "transB") else shape[-1]


def _weight_shape(flow: RoleFlow, node: Node) -> tuple[int, ...]:
    product = flow.products.get(node.key)
    tensor = flow.graph.initializers.get(flow.origin(product.weight).weight) if product is not None else None
    return () if tensor is None else tensor.shape
