"""Border of a cut: the values that it is given and returns, and what has to come along from outside.

    before   x ─► [layer.0] ─► Add ─► [layer.1] ─► y        cut layer.0 and layer.1
    after    x ─► [layer.0] ─► Add ─► [layer.1] ─► y        the Add on the path between them comes along

Three things come along: nodes on a path from inside to inside (`ConnectingPaths`; another module on it forbids the
cut), constants however they are made, and shape arithmetic that can start from an input of the cut, or from one that
has an axis of the same name (`ShapeSubgraphFinder`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.constants import integer, integers
from modelexport.graph.index import SHAPE_READERS, Node
from modelexport.graph.types import ValueTypes
from modelexport.record.hierarchy import ModuleCall, common_prefix
from modelexport.record.provenance import Provenance
from modelexport.transform.extract.selection import CutSelection, Membership, NestedGraph


@dataclass(frozen=True, eq=False)
class Border:
    """
    inside  keys of the nodes of the cut, with all that is in their subgraphs
    copied  those of them that others have as well
    """

    nest: NestedGraph
    provenance: Provenance
    selection: CutSelection
    types: ValueTypes
    inside: frozenset[str]
    copied: frozenset[str]

    def enters(self, nodes: Sequence[Node], unread: Collection[str] = ()) -> tuple[str, ...]:
        """Values that the nodes read and do not make, in file order; those of the model first.

        unread  keys of nodes whose inputs do not count
        """
        graph = self.nest.graph
        read = {value for node in nodes if node.key not in unread for value in self.nest.values_read(node)}
        positions = {value: index for index, value in enumerate(graph.inputs)}
        first = len(positions)
        entering: list[tuple[int, str]] = []
        for value in read - graph.initializers.keys():
            maker = graph.producers.get(value)
            if maker is None:
                entering.append((positions.get(value, first), value))
            elif maker.key not in self.inside:
                entering.append((first + 1 + maker.position, value))
        return tuple(value for _, value in sorted(entering))

    def leaves(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Values that the nodes make and somebody outside reads, in file order; results of the model in their own."""
        values = [value for node in nodes for value in node.outputs if value]
        leaves = [value for value in values if self._is_read_outside(value)]
        if not leaves:  # nobody needs what it returns
            leaves = [value for value in values if not any(True for _ in self.nest.readers(value))]
        # A size that somebody else happens to use as well is not what a module returns.
        computed = self.nest.graph.computed
        data = [value for value in leaves if value in computed or not self.types.may_be_sizes(value)]
        returned = data or leaves
        positions = {value: index for index, value in enumerate(self.nest.graph.outputs)}
        if positions.keys() >= set(returned):
            returned.sort(key=positions.__getitem__)
        return tuple(returned)

    def _is_read_outside(self, value: str) -> bool:
        graph = self.nest.graph
        maker = graph.producers[value]
        return value in graph.outputs or any(self._reads_ours(reader, maker) for reader in self.nest.readers(value))

    def _reads_ours(self, reader: Node, maker: Node) -> bool:
        """Whether a node outside reads a value as that of the cut, not as that of another module that shares it.

        A node that others have as well reads for them what only the cut makes.
        """
        if reader.key in self.inside:
            return reader.key in self.copied and maker.key not in self.copied
        owners = self.provenance.nodes[maker.key].attribution.owners
        inner = [owner for owner in owners if self.selection.covers(owner)]
        outer = [owner for owner in owners if owner not in inner]
        if not inner or not outer:
            return True
        # A shared value is read as that of the owner which ran closest to the reader.
        readers = self.provenance.nodes[reader.key].attribution.owners
        return self._nearness(inner, readers) >= self._nearness(outer, readers)

    def _nearness(self, makers: Sequence[ModuleCall], readers: Sequence[ModuleCall]) -> int:
        """How many calls are around a maker and a reader, where that is most."""
        stack = self.selection.hierarchy.stack
        depths = (len(common_prefix((stack(maker), stack(reader)))) for maker in makers for reader in readers)
        return max(depths, default=0)


@dataclass(frozen=True, eq=False)
class ConnectingPaths:
    """Paths that lead out of the selected nodes and back into them."""

    nest: NestedGraph
    provenance: Provenance
    selection: CutSelection
    inside: Membership

    def connecting_nodes(self) -> frozenset[str]:
        """Keys of the nodes on a way from inside to inside that no other module did."""
        return self._find_path_nodes(self._may_connect)

    def blocking_modules(self) -> tuple[ModuleCall, ...]:
        """Other modules on such a way, in file order."""
        blocking_modules = self._find_path_nodes(lambda _: True) - self.connecting_nodes()
        nodes = sorted((self.nest.graph.by_key[key] for key in blocking_modules), key=lambda node: node.position)
        owners = (owner for node in nodes for owner in self.provenance.nodes[node.key].attribution.owners)
        return tuple(dict.fromkeys(self._outermost(owner) for owner in owners if not self._is_near(owner)))

    def _outermost(self, owner: ModuleCall) -> ModuleCall:
        """The outermost call around one that has none of the selected ones inside."""
        stack = self.selection.hierarchy.stack(owner)
        return next((call for call in stack if not self.selection.encloses(call)), owner)

    def _is_near(self, owner: ModuleCall) -> bool:
        return self.selection.covers(owner) or self.selection.encloses(owner)

    def _may_connect(self, node: Node) -> bool:
        """Constants and shape arithmetic may lie on the way whoever owns them: they are copied at no cost."""
        owners = self.provenance.nodes[node.key].attribution.owners
        return not owners or any(map(self._is_near, owners)) or node.key not in self.nest.graph.computed

    def _find_path_nodes(self, may_pass: Callable[[Node], bool]) -> frozenset[str]:
        graph, inside = self.nest.graph, self.inside.keys
        # What is shared with others is copied, and what others do with theirs is not on the way.
        starts = [key for key in inside - self.inside.shared if key in graph.computed]
        read_by: dict[str, list[str]] = {}

        def step(key: str) -> Iterator[str]:
            for after in graph.successors(graph.by_key[key]):
                read_by.setdefault(after.key, []).append(key)
                if after.key not in inside and may_pass(after):
                    yield after.key

        # Reached from inside, and leading back: on a path. Two slices take linear time where listing paths would not.
        reached = backward_slice(starts, step)
        before = backward_slice(inside, lambda key: read_by.get(key, ()))
        return frozenset(reached).intersection(before) - inside


@dataclass(frozen=True)
class ShapeAxis:
    """A size: a number, or that of an axis of a value that the cut is given."""

    size: int = 0
    value: str = ""
    axis: int = 0


@dataclass(frozen=True)
class ShapeSubgraphs:
    """
    keys    nodes that come along
    shapes  by key of a Shape node among them that reads a value which is not there: what it returns, axis by axis
    """

    keys: frozenset[str]
    shapes: Mapping[str, tuple[ShapeAxis, ...]]


def constant_values(nest: NestedGraph) -> frozenset[str]:
    """Values that depend on nothing that the model is given, not even on a shape."""
    graph = nest.graph
    varying = {value for values in graph.body_inputs.values() for value in values} - set(graph.initializers)
    for node in graph.nodes:
        if any(value in varying for value in nest.values_read(node)):
            varying.update(filter(None, node.outputs))
    return frozenset(value for node in graph.nodes for value in node.outputs if value and value not in varying)


@dataclass(frozen=True, eq=False)
class ShapeSubgraphFinder:
    """For one cut after the other of one file."""

    nest: NestedGraph
    types: ValueTypes

    @cached_property
    def constants(self) -> frozenset[str]:
        return constant_values(self.nest)

    def find(self, inside: Collection[str]) -> ShapeSubgraphs:
        graph = self.nest.graph
        chosen = frozenset(inside)
        outermost = self.nest.outermost(chosen)
        # In the order of the file: the first value that has an axis names it.
        outer = (node for node in graph.nodes if node.key in outermost)
        read = dict.fromkeys(value for node in outer for value in self.nest.values_read(node))
        entering = [value for value in read if value in graph.producers and graph.producers[value].key not in chosen]
        inputs = [value for value in read if value not in graph.producers and value not in graph.initializers]
        given = [value for value in entering if not self._may_come_along(value)]
        search = _SubgraphSearch(self.nest, self.types, self.constants, chosen, (*given, *inputs))
        for value in entering:
            if value not in given:
                search.include(value)
        return ShapeSubgraphs(frozenset(search.keys), search.shapes)

    def _may_come_along(self, value: str) -> bool:
        sizes = value not in self.nest.graph.computed and self.types.may_be_sizes(value)
        return value in self.constants or sizes


@dataclass(frozen=True, eq=False)
class _SubgraphSearch:
    """
    inside  keys of the nodes that are cut out whatever comes along
    given   values that the cut is given whatever comes along
    keys    nodes that come along, as far as they are known
    shapes  what Shape nodes among them return
    """

    nest: NestedGraph
    types: ValueTypes
    constants: frozenset[str]
    inside: frozenset[str]
    given: tuple[str, ...]
    keys: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[ShapeAxis, ...]] = field(default_factory=dict)

    def include(self, value: str) -> None:
        """Let a value's whole chain come along, if it can start from what is given; else nothing of it."""
        chain: dict[str, None] = {}
        shapes: dict[str, tuple[ShapeAxis, ...]] = {}
        waiting = [value]
        while waiting:
            maker = self.nest.graph.producers.get(waiting.pop())
            if maker is None:  # an input of the model that the cut is not given
                return
            if maker.key in chain or maker.key in self.inside or maker.key in self.keys:
                continue
            chain[maker.key] = None
            if maker.operator in SHAPE_READERS and all(map(self._is_there, maker.inputs)):
                continue
            if maker.operator in SHAPE_READERS and maker.key not in self.constants:
                axes = self._axes(maker)
                if axes is None:
                    return
                shapes[maker.key] = axes
                continue
            if maker.key in self.nest.graph.computed:  # work of another module, not arithmetic with sizes
                return
            waiting += [name for name in self.nest.values_read(maker) if name not in self.nest.graph.initializers]
        self.keys.update(chain)
        self.shapes.update(shapes)

    def _is_there(self, value: str) -> bool:
        maker = self.nest.graph.producers.get(value)
        return value in self.given or (maker is not None and maker.key in self.inside)

    def _axes(self, maker: Node) -> tuple[ShapeAxis, ...] | None:
        """The shape of a value that is not there, from axes of the same name."""
        # `Size` reads shapes too, but it returns one number: that of no axis.
        dims = self.types.dims(maker.inputs[0]) if maker.operator == "Shape" else None
        if dims is None:
            return None
        # https://onnx.ai/onnx/operators/onnx__Shape.html: since opset 15 it may return a part.
        wanted = dims[integer(maker, "start") : next(iter(integers(maker, "end")), None)]
        axes = [ShapeAxis(size=dim) if isinstance(dim, int) else self._named_axes.get(dim) for dim in wanted]
        return tuple(axis for axis in axes if axis is not None) if None not in axes else None

    @cached_property
    def _named_axes(self) -> Mapping[str, ShapeAxis]:
        named_axes: dict[str, ShapeAxis] = {}
        for value in self.given:
            for index, dim in enumerate(self.types.dims(value) or ()):
                if isinstance(dim, str) and dim:
                    named_axes.setdefault(dim, ShapeAxis(value=value, axis=index))
        return named_axes
