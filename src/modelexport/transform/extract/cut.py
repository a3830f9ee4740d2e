"""A cut: which nodes go into a file of their own, what that is given and what it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelexport.errors import CutImpossible, some_of
from modelexport.graph.algorithms import UnionFind
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import Graph, Node, walk_nodes
from modelexport.graph.types import ValueTypes
from modelexport.record.hierarchy import ROOT, ROOT_NAME, ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.transform.extract.border import Axis, Between, Border, ChainFinder
from modelexport.transform.extract.identity_modules import HandedOn, Passing
from modelexport.transform.extract.selection import Fused, Inside, Nest, Selection, select_calls


@dataclass(frozen=True)
class Cut:
    """
    nodes   in file order; a node comes with its bodies
    along   keys of those among them that belong to others: constants, shape arithmetic, what lies in between
    enters  values that it is given
    leaves  values that it returns
    scope   the graph that its innermost nodes were in, and the graphs around it
    shapes  by key of a Shape node: what it returns, where the value that it reads is not there
    handed  what it returns, if it has no nodes
    """

    selection: Selection
    nodes: tuple[Node, ...] = ()
    along: frozenset[str] = frozenset()
    enters: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[Axis, ...]] = field(default_factory=dict)
    handed: HandedOn | None = None
    notes: tuple[str, ...] = ()


class Cutter:
    """Makes cuts of one file."""

    def __init__(self, file: ModelFile, provenance: Provenance) -> None:
        self.types = ValueTypes(file)
        self._nest = Nest(file.graph)
        self.provenance = provenance
        self._chains = ChainFinder(self._nest, self.types, _shape_parts(file))
        self._passing = Passing(self._nest, provenance, self.types)

    def cut(self, selection: Selection) -> Cut:
        """Raises CutImpossible, which says why and what can be cut instead."""
        inside = Inside(self._nest, self.provenance, selection)
        inside.take_whole_branches()
        self._check_functions(selection, inside)
        if not inside.keys:
            return self._handed_on(selection)
        fused = list(inside.fused())
        if fused:
            raise self._fused(selection, fused)
        between = Between(self._nest, self.provenance, selection, inside)
        if not selection.is_one_call:
            _check_way(selection, between.in_the_way())
        scope = self._scope(selection, inside.keys)
        taken = inside.keys | self._in_scope(between.glue(), scope)
        chains = self._chains.find(taken)
        everything = taken | self._in_scope(chains.keys, scope)
        nodes = self._listed(everything)
        border = Border(self._nest, self.provenance, selection, self.types, taken=everything, copied=inside.copied())
        made_here = [node for node in nodes if node.key in taken]
        cut = Cut(
            selection,
            nodes,
            everything - inside.keys,
            border.enters(nodes, chains.shapes),
            border.leaves(made_here),
            scope,
            chains.shapes,
            notes=(*selection.notes, *self._glue_notes(between.glue())),
        )
        if not cut.leaves:
            return self._handed_on(selection)  # arithmetic with sizes that others use
        if not selection.is_one_call:
            _check_connected(cut, self._nest)
        return cut

    def _listed(self, keys: frozenset[str]) -> tuple[Node, ...]:
        by_key = self._nest.graph.by_key
        return tuple(sorted((by_key[key] for key in self._nest.outermost(keys)), key=lambda node: node.position))

    def _glue_notes(self, glue: frozenset[str]) -> Iterator[str]:
        entries = [self.provenance.nodes[key] for key in sorted(glue) if key in self._nest.graph.computed]
        if entries:
            some = (
                "1 node between its parts comes"
                if len(entries) == 1
                else f"{len(entries)} nodes between its parts come"
            )
            yield f"{some} along: {some_of([entry.op_type for entry in entries])}"

    def _scope(self, selection: Selection, keys: frozenset[str]) -> tuple[str, ...]:
        """The innermost graph that nodes are in, and the graphs around it, in which all the others must be."""
        called = (self._nest.graph.by_key[key] for key in self._nest.outermost(keys))
        graphs = {node.graph for node in called}
        scopes = sorted(map(self._nest.scope, graphs), key=len)
        if graphs.issubset(scopes[-1]):
            return scopes[-1]
        raise self._alternatives(selection, [*sorted(graphs.difference(scopes[-1])), scopes[-1][0]])

    def _in_scope(self, keys: frozenset[str], scope: tuple[str, ...]) -> frozenset[str]:
        """Nodes whole; in the place of one that is in some other body, the node that holds that body."""
        found: set[str] = set()
        for key in keys:
            node = self._nest.graph.by_key[key]
            around = next((one for one in (node, *self._nest.holders(node)) if one.graph in scope), None)
            found.update(() if around is None else [around.key])
        return self._nest.with_inner(found)

    def _alternatives(self, selection: Selection, graphs: Sequence[str]) -> CutImpossible:
        holders = [self._nest.graph.by_key[self._nest.graph.owners[one]] for one in graphs if one]
        owners = [owner for node in holders for owner in self.provenance.nodes[node.key].attribution.owners]
        around = self.provenance.hierarchy.common_ancestor(owners) or ModuleCall(ROOT)
        kinds = ", ".join(sorted({node.op_type for node in holders}))
        return CutImpossible(
            f"{_named(selection.calls)} runs in more than one branch of {kinds}, and never in all of them",
            f"The smallest cut with all of them is {_word(around)}.",
            (around,),
        )

    def _check_functions(self, selection: Selection, inside: Inside) -> None:
        """What is in a function can only come along with a node that calls it."""
        by_key = self._nest.graph.by_key
        called = {node.function for node in map(by_key.__getitem__, inside.keys)}
        called |= {by_key[key].function for key in inside.in_functions}
        for node in sorted(map(by_key.__getitem__, inside.in_functions), key=lambda node: node.position):
            function = self._nest.scope(node.graph)[-1]
            if function not in called:
                raise CutImpossible(
                    f"{_named(selection.calls)} lies in the function {function} of the file, which other modules share",
                    "Put functions back in their places first: `modelexport flatten FILE -o FLAT`. Extract from that.",
                )

    def _handed_on(self, selection: Selection) -> Cut:
        if not selection.is_one_call:
            raise CutImpossible(f"none of {_named(selection.calls)} has a node in the file")
        call = selection.calls[0]
        found = self._passing.handed_on(selection)
        module = self.provenance.hierarchy.modules[call.path]
        reason = self.provenance.absent.get(call.path, "the exporter folded it into constants or removed it")
        if found is None:
            raise CutImpossible(
                f"{_word(call)} ({module.class_name}) has no node in the file: {reason}",
                f"The smallest cut with it is {_word(self._around(call))}.",
                (self._around(call),),
            )
        return Cut(
            selection,
            enters=() if found.stored else tuple(found.types),
            leaves=tuple(found.types),
            handed=found,
            notes=(*selection.notes, *_handed_notes(call, found, reason)),
        )

    def _around(self, call: ModuleCall) -> ModuleCall:
        """The innermost call around one that can be cut."""
        hierarchy = self.provenance.hierarchy
        for above in reversed(hierarchy.stack(call)[:-1]):
            selection = select_calls(hierarchy, [above])
            inside = Inside(self._nest, self.provenance, selection)
            if not inside.keys and self._passing.handed_on(selection) is not None:
                return above
            if inside.keys and not any(True for _ in inside.fused()):
                return above
        return ModuleCall(ROOT)

    def _fused(self, selection: Selection, fused: Sequence[Fused]) -> CutImpossible:
        smallest = self._smallest(selection)
        around = self._around(selection.calls[0])
        nodes = some_of([f"{one.node.op_type} {one.node.name or one.node.key!r}" for one in fused])
        others = [owner for one in fused for owner in one.owners if not selection.covers(owner)]
        also = "" if smallest == (around,) else f"; the smallest module is {_word(around)}"
        return CutImpossible(
            f"{_named(selection.calls)} was fused with {_named(tuple(dict.fromkeys(others)))}: "
            f"{nodes} does the work of both",
            f"The smallest cut that exists is {' '.join(map(_word, smallest))}{also}.",
            smallest,
        )

    def _smallest(self, selection: Selection) -> tuple[ModuleCall, ...]:
        """The calls and all that they were fused with."""
        hierarchy = self.provenance.hierarchy
        chosen = selection
        for _ in hierarchy.calls:
            inside = Inside(self._nest, self.provenance, chosen)
            owners = [owner for one in inside.fused() for owner in one.owners]
            if not owners:
                break
            chosen = select_calls(hierarchy, (*chosen.calls, *owners))
        return chosen.calls


def _shape_parts(file: ModelFile) -> Callable[[str], slice]:
    """What Shape nodes return of a shape: `start` and `end` are attributes of theirs."""
    protos = dict(walk_nodes(file.proto))

    def part(key: str) -> slice:
        bounds = {one.name: one.i for one in protos[key].attribute}
        return slice(bounds.get("start"), bounds.get("end"))

    return part


def _handed_notes(call: ModuleCall, found: HandedOn, reason: str) -> Iterator[str]:
    if found.stored:
        names = some_of(list(found.types))
        yield f"{_word(call)} was folded into a constant: the file is given nothing and returns {names}"
    elif found.certain:
        yield f"{_word(call)} has no node: it returns what it is given"
    else:
        yield f"{_word(call)} has no node ({reason}): the file returns what it is given; --verify tells whether it does"


def _check_way(selection: Selection, in_the_way: Sequence[ModuleCall]) -> None:
    if in_the_way:
        verb, them = ("lies", "it") if len(in_the_way) == 1 else ("lie", "them")
        raise CutImpossible(
            f"{_named(in_the_way)} {verb} between the parts of {_asked(selection)}",
            f"Ask for {them} as well, or for the module around all of them: {_word(selection.root)}.",
            (selection.root,),
        )


def _check_connected(cut: Cut, nest: Nest) -> None:
    """A file of parts that have nothing to do with each other is several files."""
    parts = _parts(cut.nodes, nest)
    if len(parts) > 1:
        some = [node.name or node.key for node in (part[0] for part in parts)]
        raise CutImpossible(
            f"{_asked(cut.selection)} is {len(parts)} parts that do not read from each other or from the same value: "
            f"they begin with {some_of(some)}",
            f"Cut them one by one, or the module around all of them: {_word(cut.selection.root)}.",
            (cut.selection.root,),
        )


def _parts(nodes: Sequence[Node], nest: Nest) -> list[list[Node]]:
    """Nodes that are connected by values that they make or are given; a weight connects nothing."""
    graph = nest.graph
    sets = UnionFind(nodes)
    first: dict[str, Node] = {}
    for node in nodes:
        for value in _values(node, nest, graph):
            sets.join(first.setdefault(value, node), node)
    return sets.groups()


def _values(node: Node, nest: Nest, graph: Graph) -> list[str]:
    read = [value for value in nest.reads(node) if value not in graph.initializers]
    return [*read, *filter(None, node.outputs)]


def _asked(selection: Selection) -> str:
    return " ".join(selection.asked)


def _named(calls: Iterable[ModuleCall]) -> str:
    return some_of([_word(call) for call in calls])


def _word(call: ModuleCall) -> str:
    return str(call) or ROOT_NAME
