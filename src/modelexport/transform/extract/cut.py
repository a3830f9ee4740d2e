"""Cut: which nodes go into a file of their own, what that is given and what it returns; or why it cannot be cut.

    selection → membership → connecting nodes → shape subgraphs → border

A cut that does not exist is an error that names the smallest cut that does: a fused node does the work of modules on
both sides, a function is shared by modules that were not asked for, branches of an If hold a part each.
"""

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
from modelexport.transform.extract.border import Border, ConnectingPaths, ShapeAxis, ShapeSubgraphFinder
from modelexport.transform.extract.identity_modules import IdentityModules, IdentityResult
from modelexport.transform.extract.selection import CutSelection, FusedNode, Membership, NestedGraph, select_calls


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

    selection: CutSelection
    nodes: tuple[Node, ...] = ()
    along: frozenset[str] = frozenset()
    enters: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[ShapeAxis, ...]] = field(default_factory=dict)
    handed: IdentityResult | None = None
    notes: tuple[str, ...] = ()


class Cutter:
    """Makes cuts of one file."""

    def __init__(self, file: ModelFile, provenance: Provenance) -> None:
        self.types = ValueTypes(file)
        self._nest = NestedGraph(file.graph)
        self.provenance = provenance
        self._shape_finder = ShapeSubgraphFinder(self._nest, self.types, _shape_parts(file))
        self._identity = IdentityModules(self._nest, provenance, self.types)

    def cut(self, selection: CutSelection) -> Cut:
        """Raises CutImpossible, which says why and what can be cut instead."""
        inside = Membership(self._nest, self.provenance, selection)
        inside.include_whole_branches()
        self._check_functions(selection, inside)
        if not inside.keys:
            return self._cut_identity_module(selection)
        fused = list(inside.find_fused_nodes())
        if fused:
            raise self._explain_fusion(selection, fused)
        paths = ConnectingPaths(self._nest, self.provenance, selection, inside)
        if not selection.is_one_call:
            _check_paths(selection, paths.blocking_modules())
        scope = self._scope(selection, inside.keys)
        taken = inside.keys | self._in_scope(paths.connecting_nodes(), scope)
        shape_subgraphs = self._shape_finder.find(taken)
        everything = taken | self._in_scope(shape_subgraphs.keys, scope)
        nodes = self._list_nodes(everything)
        border = Border(
            self._nest, self.provenance, selection, self.types, taken=everything, copied=inside.copied_keys()
        )
        made_here = [node for node in nodes if node.key in taken]
        cut = Cut(
            selection,
            nodes,
            everything - inside.keys,
            border.enters(nodes, shape_subgraphs.shapes),
            border.leaves(made_here),
            scope,
            shape_subgraphs.shapes,
            notes=(*selection.notes, *self._note_connecting_nodes(paths.connecting_nodes())),
        )
        if not cut.leaves:
            return self._cut_identity_module(selection)  # arithmetic with sizes that others use
        if not selection.is_one_call:
            _check_connected(cut, self._nest)
        return cut

    def _list_nodes(self, keys: frozenset[str]) -> tuple[Node, ...]:
        by_key = self._nest.graph.by_key
        return tuple(sorted((by_key[key] for key in self._nest.outermost(keys)), key=lambda node: node.position))

    def _note_connecting_nodes(self, glue: frozenset[str]) -> Iterator[str]:
        entries = [self.provenance.nodes[key] for key in sorted(glue) if key in self._nest.graph.computed]
        if entries:
            some = (
                "1 node between its parts comes"
                if len(entries) == 1
                else f"{len(entries)} nodes between its parts come"
            )
            yield f"{some} along: {some_of([entry.op_type for entry in entries])}"

    def _scope(self, selection: CutSelection, keys: frozenset[str]) -> tuple[str, ...]:
        """The innermost graph that nodes are in, and the graphs around it, in which all the others must be."""
        called = (self._nest.graph.by_key[key] for key in self._nest.outermost(keys))
        graphs = {node.graph for node in called}
        scopes = sorted(map(self._nest.graphs_around, graphs), key=len)
        if graphs.issubset(scopes[-1]):
            return scopes[-1]
        raise self._explain_branches(selection, [*sorted(graphs.difference(scopes[-1])), scopes[-1][0]])

    def _in_scope(self, keys: frozenset[str], scope: tuple[str, ...]) -> frozenset[str]:
        """Nodes whole; in the place of one that is in some other body, the node that holds that body."""
        keys_in_scope: set[str] = set()
        for key in keys:
            node = self._nest.graph.by_key[key]
            around = next(
                (holder for holder in (node, *self._nest.graph.enclosing_nodes(node)) if holder.graph in scope), None
            )
            keys_in_scope.update(() if around is None else [around.key])
        return self._nest.with_nodes_inside(keys_in_scope)

    def _explain_branches(self, selection: CutSelection, graphs: Sequence[str]) -> CutImpossible:
        holders = [self._nest.graph.by_key[self._nest.graph.body_owner[graph]] for graph in graphs if graph]
        owners = [owner for node in holders for owner in self.provenance.nodes[node.key].attribution.owners]
        around = self.provenance.hierarchy.common_ancestor(owners) or ModuleCall(ROOT)
        kinds = ", ".join(sorted({node.op_type for node in holders}))
        return CutImpossible(
            f"{_calls_text(selection.calls)} runs in more than one branch of {kinds}, and never in all of them",
            f"The smallest cut with all of them is {_call_text(around)}.",
            (around,),
        )

    def _check_functions(self, selection: CutSelection, inside: Membership) -> None:
        """What is in a function can only come along with a node that calls it."""
        by_key = self._nest.graph.by_key
        called = {node.function for node in map(by_key.__getitem__, inside.keys)}
        called |= {by_key[key].function for key in inside.in_functions}
        for node in sorted(map(by_key.__getitem__, inside.in_functions), key=lambda node: node.position):
            function = self._nest.graphs_around(node.graph)[-1]
            if function not in called:
                raise CutImpossible(
                    f"{_calls_text(selection.calls)} lies in the function {function} of the file, "
                    "which other modules share",
                    "Put functions back in their places first: `modelexport flatten FILE -o FLAT`. Extract from that.",
                )

    def _cut_identity_module(self, selection: CutSelection) -> Cut:
        if not selection.is_one_call:
            raise CutImpossible(f"none of {_calls_text(selection.calls)} has a node in the file")
        call = selection.calls[0]
        result = self._identity.find_result(selection)
        module = self.provenance.hierarchy.modules[call.path]
        reason = self.provenance.absent.get(call.path, "the exporter folded it into constants or removed it")
        if result is None:
            raise CutImpossible(
                f"{_call_text(call)} ({module.class_name}) has no node in the file: {reason}",
                f"The smallest cut with it is {_call_text(self._smallest_module(call))}.",
                (self._smallest_module(call),),
            )
        return Cut(
            selection,
            enters=() if result.stored else tuple(result.types),
            leaves=tuple(result.types),
            handed=result,
            notes=(*selection.notes, *_describe_identity(call, result, reason)),
        )

    def _smallest_module(self, call: ModuleCall) -> ModuleCall:
        """The innermost call around one that can be cut."""
        hierarchy = self.provenance.hierarchy
        for above in reversed(hierarchy.stack(call)[:-1]):
            selection = select_calls(hierarchy, [above])
            inside = Membership(self._nest, self.provenance, selection)
            if not inside.keys and self._identity.find_result(selection) is not None:
                return above
            if inside.keys and not any(True for _ in inside.find_fused_nodes()):
                return above
        return ModuleCall(ROOT)

    def _explain_fusion(self, selection: CutSelection, fused: Sequence[FusedNode]) -> CutImpossible:
        smallest = self._smallest_calls(selection)
        around = self._smallest_module(selection.calls[0])
        nodes = some_of(
            [f"{fused_node.node.op_type} {fused_node.node.name or fused_node.node.key!r}" for fused_node in fused]
        )
        others = [owner for fused_node in fused for owner in fused_node.owners if not selection.covers(owner)]
        also = "" if smallest == (around,) else f"; the smallest module is {_call_text(around)}"
        return CutImpossible(
            f"{_calls_text(selection.calls)} was fused with {_calls_text(tuple(dict.fromkeys(others)))}: "
            f"{nodes} does the work of both",
            f"The smallest cut that exists is {' '.join(map(_call_text, smallest))}{also}.",
            smallest,
        )

    def _smallest_calls(self, selection: CutSelection) -> tuple[ModuleCall, ...]:
        """The calls and all that they were fused with."""
        hierarchy = self.provenance.hierarchy
        chosen = selection
        for _ in hierarchy.calls:
            inside = Membership(self._nest, self.provenance, chosen)
            owners = [owner for fused_node in inside.find_fused_nodes() for owner in fused_node.owners]
            if not owners:
                break
            chosen = select_calls(hierarchy, (*chosen.calls, *owners))
        return chosen.calls


def _shape_parts(file: ModelFile) -> Callable[[str], slice]:
    """What Shape nodes return of a shape: `start` and `end` are attributes of theirs."""
    protos = dict(walk_nodes(file.proto))

    def part(key: str) -> slice:
        bounds = {attribute.name: attribute.i for attribute in protos[key].attribute}
        return slice(bounds.get("start"), bounds.get("end"))

    return part


def _describe_identity(call: ModuleCall, result: IdentityResult, reason: str) -> Iterator[str]:
    if result.stored:
        names = some_of(list(result.types))
        yield f"{_call_text(call)} was folded into a constant: the file is given nothing and returns {names}"
    elif result.certain:
        yield f"{_call_text(call)} has no node: it returns what it is given"
    else:
        yield (
            f"{_call_text(call)} has no node ({reason}): the file returns what it is given; "
            "--verify tells whether it does"
        )


def _check_paths(selection: CutSelection, in_the_way: Sequence[ModuleCall]) -> None:
    if in_the_way:
        verb, them = ("lies", "it") if len(in_the_way) == 1 else ("lie", "them")
        raise CutImpossible(
            f"{_calls_text(in_the_way)} {verb} between the parts of {_asked_text(selection)}",
            f"Ask for {them} as well, or for the module around all of them: {_call_text(selection.root)}.",
            (selection.root,),
        )


def _check_connected(cut: Cut, nest: NestedGraph) -> None:
    """A file of parts that have nothing to do with each other is several files."""
    parts = _split_parts(cut.nodes, nest)
    if len(parts) > 1:
        some = [node.name or node.key for node in (part[0] for part in parts)]
        raise CutImpossible(
            f"{_asked_text(cut.selection)} is {len(parts)} parts that do not read from each other or from the same "
            f"value: they begin with {some_of(some)}",
            f"Cut them one by one, or the module around all of them: {_call_text(cut.selection.root)}.",
            (cut.selection.root,),
        )


def _split_parts(nodes: Sequence[Node], nest: NestedGraph) -> list[list[Node]]:
    """Nodes that are connected by values that they make or are given; a weight connects nothing."""
    graph = nest.graph
    sets = UnionFind(nodes)
    first_touching: dict[str, Node] = {}
    for node in nodes:
        for value in _touched_values(node, nest, graph):
            sets.join(first_touching.setdefault(value, node), node)
    return sets.groups()


def _touched_values(node: Node, nest: NestedGraph, graph: Graph) -> list[str]:
    read = [value for value in nest.values_read(node) if value not in graph.initializers]
    return [*read, *filter(None, node.outputs)]


def _asked_text(selection: CutSelection) -> str:
    return " ".join(selection.asked)


def _calls_text(calls: Iterable[ModuleCall]) -> str:
    return some_of([_call_text(call) for call in calls])


def _call_text(call: ModuleCall) -> str:
    return str(call) or ROOT_NAME
