"""Border of a cut: the values that it is given and returns, and what has to come along from outside.

    before   x ─► [layer.0] ─► Add ─► [layer.1] ─► y        cut layer.0 and layer.1
    after    x ─► [layer.0] ─► Add ─► [layer.1] ─► y        the Add on the path between them comes along

Three things come along: nodes on a path from inside to inside (`ConnectingPaths`; another module on it forbids the
cut), constants however they are made, and shape arithmetic that can start from an input of the cut, or from one that
has an axis of the same name (`ShapeSubgraphFinder`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from modelexport.graph.algorithms import backward_slice
from modelexport.graph.index import SHAPE_READERS, Node
from modelexport.graph.types import ValueTypes
from modelexport.record.hierarchy import ModuleCall, common_prefix
from modelexport.record.provenance import Provenance
from modelexport.transform.extract.selection import CutSelection, Membership, NestedGraph


@dataclass(frozen=True, eq=False)
class Border:
    """
    taken   keys of the nodes of the cut, with all that is in their subgraphs
    copied  those of them that others have as well
    """

    nest: NestedGraph
    provenance: Provenance
    selection: CutSelection
    types: ValueTypes
    taken: frozenset[str]
    copied: frozenset[str]

    def enters(self, nodes: Sequence[Node], unread: Collection[str] = ()) -> tuple[str, ...]:
        """Values that the nodes read and do not make, in file order; those of the model first.

        unread  keys of nodes whose inputs do not count
        """
        graph = self.nest.graph
        read = {value for node in nodes if node.key not in unread for value in self.nest.values_read(node)}
        outside = [value for value in read if not self._is_made(value) and value not in graph.initializers]
        places = {value: index for index, value in enumerate(graph.inputs)}
        first = len(places)

        def sort_key(value: str) -> tuple[int, str]:
            maker = graph.producers.get(value)
            return (places.get(value, first) if maker is None else first + 1 + maker.position), value

        return tuple(sorted(outside, key=sort_key))

    def _is_made(self, value: str) -> bool:
        maker = self.nest.graph.producers.get(value)
        return maker is not None and maker.key in self.taken

    def leaves(self, nodes: Sequence[Node]) -> tuple[str, ...]:
        """Values that the nodes make and somebody outside reads, in file order; results of the model in their own."""
        values = [value for node in nodes for value in node.outputs if value]
        leaves = [value for value in values if self._is_read_outside(value)]
        if not leaves:  # nobody needs what it returns
            leaves = [value for value in values if not any(True for _ in self.nest.readers(value))]
        data = [value for value in leaves if not self._is_arithmetic(value)]
        returned = data or leaves
        places = {value: index for index, value in enumerate(self.nest.graph.outputs)}
        if places.keys() >= set(returned):
            returned.sort(key=places.__getitem__)
        return tuple(returned)

    def _is_arithmetic(self, value: str) -> bool:
        """A size that somebody else happens to use as well is not what a module returns."""
        return value not in self.nest.graph.computed and self.types.may_be_sizes(value)

    def _is_read_outside(self, value: str) -> bool:
        graph = self.nest.graph
        if value in graph.outputs:
            return True
        maker = graph.producers[value]
        return any(self._reads_ours(reader, maker) for reader in self.nest.readers(value))

    def _reads_ours(self, reader: Node, maker: Node) -> bool:
        """Whether a node outside reads a value as that of the cut, not as that of another module that shares it.

        A node that others have as well reads for them what only the cut makes.
        """
        if reader.key in self.taken:
            return reader.key in self.copied and maker.key not in self.copied
        owners = self.provenance.nodes[maker.key].attribution.owners
        ours = [owner for owner in owners if self.selection.covers(owner)]
        others = [owner for owner in owners if owner not in ours]
        if not ours or not others:
            return True
        readers = self.provenance.nodes[reader.key].attribution.owners
        return self._nearness(ours, readers) >= self._nearness(others, readers)

    def _nearness(self, makers: Sequence[ModuleCall], readers: Sequence[ModuleCall]) -> int:
        return max((self._depth(maker, reader) for maker in makers for reader in readers), default=0)

    def _depth(self, maker: ModuleCall, reader: ModuleCall) -> int:
        """How many calls around both of them are the same."""
        stack = self.selection.hierarchy.stack
        return len(common_prefix((stack(maker), stack(reader))))


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
        owners = (owner for node in nodes for owner in self._owners(node))
        return tuple(dict.fromkeys(self._outermost(owner) for owner in owners if not self._is_near(owner)))

    def _outermost(self, owner: ModuleCall) -> ModuleCall:
        """The outermost call around one that has none of the selected ones inside."""
        stack = self.selection.hierarchy.stack(owner)
        return next((call for call in stack if not self.selection.encloses(call)), owner)

    def _owners(self, node: Node) -> tuple[ModuleCall, ...]:
        return self.provenance.nodes[node.key].attribution.owners

    def _is_near(self, owner: ModuleCall) -> bool:
        return self.selection.covers(owner) or self.selection.encloses(owner)

    def _may_connect(self, node: Node) -> bool:
        owners = self._owners(node)
        return not owners or any(map(self._is_near, owners)) or node.key not in self.nest.graph.computed

    def _find_path_nodes(self, may_pass: Callable[[Node], bool]) -> frozenset[str]:
        graph, inside = self.nest.graph, self.inside.keys
        # What is shared with others is copied, and what others do with theirs is not on the way.
        starts = [key for key in inside - self.inside.shared if key in graph.computed]
        reached: set[str] = set()
        read_by: dict[str, list[str]] = {}
        waiting = [graph.by_key[key] for key in starts]
        while waiting:
            node = waiting.pop()
            for after in graph.successors(node):
                read_by.setdefault(after.key, []).append(node.key)
                if after.key not in inside and after.key not in reached and may_pass(after):
                    reached.add(after.key)
                    waiting.append(after)
        before = backward_slice(list(inside), lambda key: read_by.get(key, ()))
        return frozenset(reached.intersection(before))


_SHAPE = "Shape"
Part = Callable[[str], slice]
"""By key of a Shape node: the part of the shape that it returns."""


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
    part: Part

    @cached_property
    def constants(self) -> frozenset[str]:
        return constant_values(self.nest)

    def find(self, taken: Collection[str]) -> ShapeSubgraphs:
        """What has to come along with these nodes."""
        graph = self.nest.graph
        entering = [value for value in _entering(self.nest, taken) if value in graph.producers]
        given = [value for value in entering if not self._may_come_along(value)]
        given += [value for value in _entering(self.nest, taken) if value not in graph.producers]
        search = _SubgraphSearch(self.nest, self.types, self.part, self.constants, frozenset(taken), tuple(given))
        for value in entering:
            if value not in given:
                search.take(value)
        return ShapeSubgraphs(frozenset(search.keys), search.shapes)

    def _may_come_along(self, value: str) -> bool:
        if value in self.constants:
            return True
        return value not in self.nest.graph.computed and self.types.may_be_sizes(value)


def _entering(nest: NestedGraph, taken: Iterable[str]) -> tuple[str, ...]:
    graph = nest.graph
    values = dict.fromkeys(value for key in nest.outermost(taken) for value in nest.values_read(graph.by_key[key]))
    chosen = set(taken)
    return tuple(
        value
        for value in values
        if value not in graph.initializers
        and (value not in graph.producers or graph.producers[value].key not in chosen)
    )


@dataclass(frozen=True, eq=False)
class _SubgraphSearch:
    """
    given   values that the cut is given whatever comes along
    keys    nodes that come along, as far as they are known
    shapes  what Shape nodes among them return
    """

    nest: NestedGraph
    types: ValueTypes
    part: Part
    constants: frozenset[str]
    taken: frozenset[str]
    given: tuple[str, ...]
    keys: set[str] = field(default_factory=set)
    shapes: dict[str, tuple[ShapeAxis, ...]] = field(default_factory=dict)

    def take(self, value: str) -> None:
        """Let a value's whole chain come along, if it can start from what is given; else nothing of it."""
        chain: dict[str, None] = {}
        shapes: dict[str, tuple[ShapeAxis, ...]] = {}
        waiting = [value]
        while waiting:
            maker = self.nest.graph.producers.get(waiting.pop())
            if maker is None:
                return
            if maker.key in chain or maker.key in self.taken or maker.key in self.keys:
                continue
            chain[maker.key] = None
            if self._starts_here(maker):
                continue
            if maker.op_type in SHAPE_READERS and maker.key not in self.constants:
                axes = self._axes(maker)
                if axes is None:
                    return
                shapes[maker.key] = axes
                continue
            if maker.key in self.nest.graph.computed:
                return
            waiting += [name for name in self.nest.values_read(maker) if name not in self.nest.graph.initializers]
        self.keys.update(chain)
        self.shapes.update(shapes)

    def _starts_here(self, maker: Node) -> bool:
        """Whether a node reads the shape of something that is there."""
        if maker.op_type not in SHAPE_READERS:
            return False
        return all(self._is_there(value) for value in maker.inputs)

    def _is_there(self, value: str) -> bool:
        maker = self.nest.graph.producers.get(value)
        return value in self.given or (maker is not None and maker.key in self.taken)

    def _axes(self, maker: Node) -> tuple[ShapeAxis, ...] | None:
        """The shape of a value that is not there, from axes of the same name."""
        dims = self.types.dims(maker.inputs[0]) if maker.op_type == _SHAPE else None
        if dims is None:
            return None
        wanted = dims[self.part(maker.key)]
        axes = [ShapeAxis(size=dim) if isinstance(dim, int) else self._axis_named(dim) for dim in wanted]
        return tuple(axis for axis in axes if axis is not None) if None not in axes else None

    def _axis_named(self, name: str) -> ShapeAxis | None:
        return self._named_axes.get(name)

    @cached_property
    def _named_axes(self) -> Mapping[str, ShapeAxis]:
        named_axes: dict[str, ShapeAxis] = {}
        for value in self.given:
            for index, dim in enumerate(self.types.dims(value) or ()):
                if isinstance(dim, str) and dim:
                    named_axes.setdefault(dim, ShapeAxis(value=value, axis=index))
        return named_axes
