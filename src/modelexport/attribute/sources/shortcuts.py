"""Shortcuts around parts of a network: at their ends it can be cut into segments.

A shortcut leads from a fork to a join, where a value is added to what was made of it, or put beside it:

    x ─┬► LayerNorm ─► … ─► MatMul ─► Add ─► y       fork x, join y: a residual segment
       └─────────────────────────────► ┘
    x ─┬► … ─► Conv ─► Add ─► Relu ─► z              fork z of the next one: the norm or activation between is the
       └► Conv(1×1) ─► ┘                             tail of the segment; a product between is a segment of its own
    x ─┬► Pool ─► … ─► Resize ─► Concat              a long shortcut: it may lead around other segments

An addition counts only if no other join lies between fork and join: what a mask adds to scores is no shortcut, though
all layers before were made of it. Shortcuts are followed by marks, as `roles/blocks.py` does; a mark is open until the
last join that can close it. A join of many values (a Concat of all time steps) asks for each value once, not for each
pair.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple, TypeVar

from modelexport.attribute.roles.value_origins import RoleFlow
from modelexport.graph.algorithms import group_by_key
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.graph.operators import (
    ATTENTIONS_THAT_PROJECT,
    NORMALIZATIONS,
    POOLS,
    SUM_OUTPUT,
    SUMMANDS,
    TRAITS,
    VIEWS,
    Trait,
    having,
)

# Nobody keeps more shortcuts open than this; past it, marks are dropped rather than carried along for ever.
_MOST_MARKS = 96
# What a shortcut may hold around its product; norms that add are joins.
_BESIDE_PRODUCT = (NORMALIZATIONS - SUMMANDS.keys()) | POOLS
_SCALING = frozenset({"Add", "Sub", "Mul", "Div"})
_ELEMENTWISE = Trait.UNARY | Trait.BROADCAST | Trait.MOVEMENT | Trait.PASS_THROUGH
_REDUCING = Trait.REDUCTION | Trait.GLOBAL_POOL | Trait.NORMALIZATION | Trait.SOFTMAX
_ARITHMETIC = frozenset(name for name, traits in TRAITS.items() if traits & (_ELEMENTWISE | _REDUCING))
_PASSING = having(Trait.PASS_THROUGH)
# The same numbers, perhaps in another order or type.
_REARRANGING = _PASSING | VIEWS | {"Transpose"}


def reads_of(graph: Graph, node: Node) -> tuple[str, ...]:
    """What a node reads, and what the bodies inside of it read."""
    if node.key not in graph.subgraphs:
        return tuple(filter(None, node.inputs))
    inner = (value for member in graph.subgraph_nodes(node) for value in member.inputs)
    returned = (value for body in graph.subgraphs[node.key] for value in graph.body_outputs[body])
    return tuple(dict.fromkeys(filter(None, (*node.inputs, *inner, *returned))))


def order_canonically(graph: Graph) -> list[Node]:
    """Nodes of the main graph that an output is made of: depth-first from the outputs, inputs first.

    Equal blocks come out in equal order, however the file lists them.
    """
    producers = graph.producers
    order: list[Node] = []
    seen: set[str] = set()
    for output in graph.outputs:
        waiting: list[tuple[Node, Iterator[str]]] = []
        _enter(graph, producers.get(output), seen, waiting)
        while waiting:
            node, values = waiting[-1]
            value = next(values, None)
            if value is None:
                order.append(node)
                waiting.pop()
            else:
                _enter(graph, producers.get(value), seen, waiting)
    return order


def _enter(graph: Graph, node: Node | None, seen: set[str], waiting: list[tuple[Node, Iterator[str]]]) -> None:
    if node is not None and node.graph == MAIN and node.key not in seen:
        seen.add(node.key)
        waiting.append((node, iter(reads_of(graph, node))))


@dataclass(frozen=True, slots=True)
class Join:
    """Where a shortcut ends. `fork` is where it began, `value` what comes out; `puts_beside` for Concat."""

    fork: str
    value: str
    node: Node
    position: int
    puts_beside: bool


class _Mark(NamedTuple):
    """What happened since a fork: whether numbers were mixed, and the position of the last join, -1 if none."""

    mixed: bool = False
    last_join: int = -1


_Marks = Mapping[str, _Mark]
_FRESH = _Mark()
_State = TypeVar("_State", bound=Hashable)


@dataclass
class ShortcutFinder:
    """One pass over the nodes in canonical order."""

    flow: RoleFlow
    order: Sequence[Node]
    joins: dict[str, Join] = field(default_factory=dict)
    _marks: dict[str, dict[str, _Mark]] = field(default_factory=dict)
    _plain: dict[str, str] = field(default_factory=dict)
    _starts: dict[tuple[str, bool], tuple[str, bool]] = field(default_factory=dict)

    def find(self) -> list[Join]:
        self._last = self._last_uses()
        for position, node in enumerate(self.order):
            if node.key in self.flow.graph.computed:
                self._visit(position, node)
        forks: dict[str, str] = {}
        return [
            replace(join, fork=_follow(join.fork, self._before_passing, forks))
            for join in self.joins.values()
            if not self._is_summed_on(join)
        ]

    def _before_passing(self, value: str) -> str:
        """The value before a cast or quantizer, no further than to a join: these belong to what reads them."""
        maker = self.flow.graph.producers.get(value)
        if value in self.joins or maker is None or maker.operator not in _PASSING or value != maker.outputs[0]:
            return value
        return _first_input(maker) or value

    def _last_uses(self) -> dict[str, int]:
        """Values that a join may come back to, with the position of the last one."""
        last: dict[str, int] = {}
        for position, node in enumerate(self.order):
            for operand in operands_of(node):
                for start in (self.plain(operand), self._shortcut(operand)):
                    if self._can_fork(start):
                        last[start] = position
        return last

    def _can_fork(self, value: str) -> bool:
        graph, origin = self.flow.graph, self.flow.origin(value)
        if value not in graph.computed or not origin.content or not (origin.learned or value in graph.inputs):
            return False
        maker = graph.producers.get(value)
        # A norm that adds first hands the sum to the next join, and what it normalized to the branch.
        return len(graph.consumers.get(value, ())) > 1 or (maker is not None and value != maker.outputs[0])

    def plain(self, value: str) -> str:
        """The value before casts, quantizers and views; at most back to where others read it too."""
        return _follow(value, self._before_view, self._plain)

    def _before_view(self, value: str) -> str:
        graph = self.flow.graph
        maker = graph.producers.get(value)
        if maker is None or maker.operator not in _REARRANGING or len(graph.consumers.get(value, ())) > 1:
            return value
        return _first_input(maker) or value

    def _shortcut(self, value: str) -> str:
        """Where a shortcut with one product in it begins; around the product there may be norms, pools and biases."""
        start, has_product = _follow((value, False), self._before_scaling, self._starts)
        return start if has_product else ""

    def _before_scaling(self, state: tuple[str, bool]) -> tuple[str, bool]:
        """The value before what made this one, and whether a product was passed."""
        value, has_product = self.plain(state[0]), state[1]
        maker = self.flow.graph.producers.get(value)
        if maker is None:
            return value, has_product
        product = self.flow.products.get(maker.key)
        if product is not None and product.weight and not has_product and not operands_of(maker):
            return product.data, True
        before = ""
        if maker.operator in _BESIDE_PRODUCT:
            before = _first_input(maker)
        elif maker.operator in _SCALING:
            before = self._scaled(maker)
        return before or value, has_product

    def _scaled(self, node: Node) -> str:
        """The operand that is not a weight, if the other one is: a bias, or a norm that became arithmetic."""
        computed = [value for value in node.inputs if value in self.flow.graph.computed]
        return computed[0] if len(computed) == 1 else ""

    def _visit(self, position: int, node: Node) -> None:
        marks = self._merge(node, position)
        join = self._find_join(node, position)
        if join is not None:
            self.joins[join.value] = join
            marks = {fork: _Mark(mark.mixed, position) for fork, mark in marks.items()}
        if marks:
            self._marks.update((output, marks) for output in node.outputs if output)
        total = _joined(node)
        if node.operator in SUM_OUTPUT and total in self._last:
            # The other outputs of a node that adds and normalizes are made of the sum.
            made = {**marks, total: _FRESH}
            self._marks.update((output, made) for output in node.outputs if output and output != total)

    def _merge(self, node: Node, position: int) -> dict[str, _Mark]:
        merged: dict[str, _Mark] = {}
        values = reads_of(self.flow.graph, node)
        for value in values:
            for fork, mark in self._marks.get(value, {}).items():
                if self._last[fork] > position:
                    merged[fork] = _unite(merged.get(fork), mark)
        for value in values:
            if self._last.get(value, -1) > position:
                merged[value] = _unite(merged.get(value), _FRESH)
        if _mixes(node):
            merged = {fork: _Mark(mixed=True, last_join=mark.last_join) for fork, mark in merged.items()}
        return merged if len(merged) <= _MOST_MARKS else {}

    def _find_join(self, node: Node, position: int) -> Join | None:
        operands, total = operands_of(node), _joined(node)
        if len(operands) < 2 or not total:
            return None
        beside = node.operator == "Concat"
        carried = {operand: [*islice(self._carried(operand), _MOST_MARKS)] for operand in operands}
        starts = {} if beside else {operand: self._shortcut(operand) for operand in operands}
        forks = {*starts.values(), *(fork for values in carried.values() for fork in values)}
        made_of = self._list_branches(node, forks, beside=beside)
        fork = _fork_of_sum(carried, made_of) or self._fork_before_product(starts, made_of)
        return Join(fork, total, node, position, beside) if fork else None

    def _list_branches(self, node: Node, forks: set[str], *, beside: bool) -> Mapping[str, Sequence[str]]:
        """By fork: the operands that are made of it by the work of a block."""
        marks = {operand: self._branch_marks(node, operand) for operand in operands_of(node)}
        return group_by_key(
            (fork, operand)
            for operand, own in marks.items()
            for fork in forks.intersection(own)
            if own[fork].mixed and (beside or own[fork].last_join < 0)
        )

    def _fork_before_product(self, starts: Mapping[str, str], made_of: Mapping[str, Sequence[str]]) -> str:
        """Where a shortcut with a product in it began, if another operand is made of the same by other products."""
        others: dict[str, set[frozenset[str]]] = {}
        for operand, start in starts.items():
            if start not in others:
                branches = (branch for branch in made_of.get(start, ()) if starts[branch] != start)
                others[start] = {self._sources(branch) for branch in branches}
            # A function written as a polynomial has the same product in all of its terms.
            if others[start] and others[start] != {self._sources(operand)}:
                return start
        return ""

    def _sources(self, operand: str) -> frozenset[str]:
        return frozenset((_MADE,)) if operand == _MADE else self.flow.origin(operand).sources

    def _branch_marks(self, node: Node, branch: str) -> _Marks:
        """Marks on an operand; where a convolution adds to what it makes, on that."""
        if branch != _MADE:
            return self._marks.get(branch, {})
        value = node.inputs[0]
        marks = {**self._marks.get(value, {}), value: _FRESH}
        return {fork: _Mark(mixed=True, last_join=mark.last_join) for fork, mark in marks.items()}

    def _carried(self, value: str) -> Iterator[str]:
        """The value itself, and what it is a sum with: `x + attention(x)` carries x."""
        value = self.plain(value)
        yield value
        while (join := self.joins.get(value)) is not None and not join.puts_beside:
            if len(self.flow.graph.consumers.get(value, ())) > 1:
                return
            value = join.fork
            yield value

    def _is_summed_on(self, join: Join) -> bool:
        """It is only added to another branch of the same fork."""
        readers = self.flow.graph.consumers.get(join.value, ())
        if len(readers) != 1:
            return False
        onward = self.joins.get(_joined(readers[0]))
        return onward is not None and onward.fork == join.fork and not onward.puts_beside


_MADE = "\0made"  # stands for what a convolution makes before it adds; no name of a value


def operands_of(node: Node) -> tuple[str, ...]:
    """What a node adds to each other or puts beside each other; nothing if it does neither."""
    if node.operator in ("Concat", "Sum"):
        return tuple(dict.fromkeys(filter(None, node.inputs)))
    indices = SUMMANDS.get(node.operator, ())
    if any(index >= len(node.inputs) or (index >= 0 and not node.inputs[index]) for index in indices):
        return ()
    return tuple(_MADE if index < 0 else node.inputs[index] for index in indices)


def _joined(node: Node) -> str:
    """What a join makes: of a norm that adds first, the sum where it returns that."""
    index = SUM_OUTPUT.get(node.operator, 0)
    return node.outputs[index] if index < len(node.outputs) and node.outputs[index] else node.outputs[0]


def _first_input(node: Node) -> str:
    return node.inputs[0] if node.inputs else ""


def _follow(state: _State, step: Callable[[_State], _State], ends: dict[_State, _State]) -> _State:
    """Where steps lead from a state until one leads nowhere. Ways are kept in `ends`, so that none is gone twice."""
    passed: list[_State] = []
    while state not in ends:
        passed.append(state)
        onward = step(state)
        if onward == state:
            ends[state] = state
        state = onward
    end = ends[state]
    ends.update(dict.fromkeys(passed, end))
    return end


def _fork_of_sum(carried: Mapping[str, Sequence[str]], made_of: Mapping[str, Sequence[str]]) -> str:
    """What an operand carries as it is while another one is made of it; empty if there is no such value."""
    pairs = ((operand, fork) for operand, forks in carried.items() for fork in forks)
    return next((fork for operand, fork in pairs if made_of.get(fork, ()) not in ((), (operand,))), "")


def _unite(first: _Mark | None, second: _Mark) -> _Mark:
    if first is None or first == second:
        return second
    return _Mark(first.mixed or second.mixed, max(first.last_join, second.last_join))


def _mixes(node: Node) -> bool:
    """Whether it does the work of a block: products, pools. Polynomials and norms add a value to itself too."""
    return node.operator not in _ARITHMETIC


def is_weighted(flow: RoleFlow, node: Node) -> bool:
    """A product of content with a weight, or an attention that projects by itself."""
    product = flow.products.get(node.key)
    if product is not None:
        return bool(product.weight) and flow.origin(product.data).content
    return (node.domain, node.op_type) in ATTENTIONS_THAT_PROJECT
