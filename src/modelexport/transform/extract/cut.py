"""Cut: which nodes go into a file of their own, what that is given and what it returns; or why it cannot be cut.

    selection → membership → connecting nodes → shape subgraphs → border

    Attention of a Layer     keys: its MatMul and Softmax     enters: hidden     leaves: context
    Linear that ORT fused    FusedMatMul does its work and that of the Transpose before: CutImpossible, cut Attention

A cut that does not exist is an error that names the smallest cut that does: a fused node does the work of modules on
both sides, a function is shared by modules that were not asked for, branches of an If hold a part each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from modelexport.errors import CutImpossible, some_of
from modelexport.graph.algorithms import UnionFind
from modelexport.graph.file.reading import ModelFile
from modelexport.graph.index import Node
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
    """Makes cuts of one file; what does not depend on the selection is worked out once for all of them."""

    def __init__(self, file: ModelFile, provenance: Provenance) -> None:
        self.types = ValueTypes(file)
        self._nest = NestedGraph(file.graph)
        self.provenance = provenance
        self._shape_finder = ShapeSubgraphFinder(self._nest, self.types)
        self._identity = IdentityModules(self._nest, provenance, self.types)

    def cut(self, selection: CutSelection) -> Cut:
        """Raises CutImpossible, which says why and what can be cut instead."""
        inside = Membership(self._nest, self.provenance, selection)
        inside.include_whole_branches()
        # Before the test for no nodes: a module in a function has nodes, only none that can be cut by themselves.
        self._check_functions(selection, inside)
        if not inside.keys:
            return self._cut_identity_module(selection)
        fused = list(inside.find_fused_nodes())
        if fused:
            raise self._explain_fusion(selection, fused)
        paths = ConnectingPaths(self._nest, self.provenance, selection, inside)
        if not selection.is_one_call:  # what a call of one module does in between is part of that call
            _check_paths(selection, paths.blocking_modules())
        scope = self._scope(selection, inside.keys)
        own = inside.keys | self._in_scope(paths.connecting_nodes(), scope)
        shape_subgraphs = self._shape_finder.find(own)
        everything = own | self._in_scope(shape_subgraphs.keys, scope)
        outer = (self._nest.graph.by_key[key] for key in self._nest.outermost(everything))
        nodes = tuple(sorted(outer, key=lambda node: node.position))
        border = Border(self._nest, self.provenance, selection, self.types, everything, inside.copied_keys())
        # Shape arithmetic that came along returns nothing: whoever reads it has it where it was.
        made_here = [node for node in nodes if node.key in own]
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

    def _note_connecting_nodes(self, glue: frozenset[str]) -> Iterator[str]:
        computed = self._nest.graph.computed
        op_types = [self.provenance.nodes[key].op_type for key in sorted(glue) if key in computed]
        if op_types:
            nodes, come = ("node", "comes") if len(op_types) == 1 else ("nodes", "come")
            yield f"{len(op_types)} {nodes} between its parts {come} along: {some_of(op_types)}"

    def _scope(self, selection: CutSelection, keys: frozenset[str]) -> tuple[str, ...]:
        """The innermost graph that nodes are in, and the graphs around it, in which all the others must be."""
        graphs = {self._nest.graph.by_key[key].graph for key in self._nest.outermost(keys)}
        innermost = max(map(self._nest.graphs_around, sorted(graphs)), key=len)
        if graphs.issubset(innermost):
            return innermost
        raise self._explain_branches(selection, [*sorted(graphs.difference(innermost)), innermost[0]])

    def _in_scope(self, keys: frozenset[str], scope: tuple[str, ...]) -> frozenset[str]:
        """Nodes whole; in the place of one that is in some other body, the node that holds that body."""
        graph = self._nest.graph
        keys_in_scope: set[str] = set()
        for node in map(graph.by_key.__getitem__, keys):
            holders = (holder.key for holder in (node, *graph.enclosing_nodes(node)) if holder.graph in scope)
            keys_in_scope.update(islice(holders, 1))
        return self._nest.with_nodes_inside(keys_in_scope)

    def _explain_branches(self, selection: CutSelection, graphs: Sequence[str]) -> CutImpossible:
        """A module that runs in one of several branches has no graph of its own: the node around decides on it."""
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
        # Calls in the main graph, and calls in functions that come along with these.
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
        class_name = self.provenance.hierarchy.modules[call.path].class_name
        reason = self._explain_absence(call)
        if result is None:
            raise CutImpossible(
                f"{_call_text(call)}{f' ({class_name})' if class_name else ''} has no node in the file: {reason}",
                f"The smallest cut with it is {_call_text(self._smallest_module(call))}.",
                (self._smallest_module(call),),
            )
        return Cut(
            selection,
            enters=() if result.stored else tuple(result.types),
            leaves=tuple(result.types),
            handed=result,
            notes=(*selection.notes, _describe_identity(call, result, reason)),
        )

    def _explain_absence(self, call: ModuleCall) -> str:
        """Why a module has no node: as the record has it, or else what is known of its weights."""
        if call.path in self.provenance.absent:
            return self.provenance.absent[call.path]
        weights = [
            name
            for name, attribution in self.provenance.initializers.items()
            if any(owner.path == call.path for owner in attribution.owners)
        ]
        readers = {node.key: node for name in weights for node in self._nest.graph.consumers.get(name, ())}
        if readers:
            texts = (
                f"{node.op_type} of {_calls_text(self.provenance.recorded(key).owners)}"
                for key, node in readers.items()
            )
            return f"its weights are read by {some_of(list(dict.fromkeys(texts)))}"
        if self.provenance.origin.is_file:
            return "nothing in the file tells of one"
        return "the exporter folded it into constants or removed it"

    def _smallest_module(self, call: ModuleCall) -> ModuleCall:
        """The innermost call around one that can be cut."""
        hierarchy = self.provenance.hierarchy
        for above in reversed(hierarchy.stack(call)[:-1]):
            selection = select_calls(hierarchy, [above])
            inside = Membership(self._nest, self.provenance, selection)
            blocked = any(inside.find_fused_nodes()) if inside.keys else self._identity.find_result(selection) is None
            if not blocked:
                return above
        return ModuleCall(ROOT)

    def _explain_fusion(self, selection: CutSelection, fused: Sequence[FusedNode]) -> CutImpossible:
        """Two ways out: the calls that were fused, together, or the module around them."""
        smallest = self._smallest_calls(selection)
        around = self._smallest_module(selection.calls[0])
        nodes = some_of([f"{node.op_type} {node.name or node.key!r}" for node in (item.node for item in fused)])
        outside = (owner for item in fused for owner in item.owners if not selection.covers(owner))
        also = "" if smallest == (around,) else f"; the smallest module is {_call_text(around)}"
        return CutImpossible(
            f"{_calls_text(selection.calls)} was fused with {_calls_text(dict.fromkeys(outside))}: "
            f"{nodes} does the work of both",
            f"The smallest cut that exists is {' '.join(map(_call_text, smallest))}{also}.",
            smallest,
        )

    def _smallest_calls(self, selection: CutSelection) -> tuple[ModuleCall, ...]:
        hierarchy = self.provenance.hierarchy
        chosen = selection
        for _ in hierarchy.calls:  # each round adds a call, or is the last
            inside = Membership(self._nest, self.provenance, chosen)
            owners = [owner for fused_node in inside.find_fused_nodes() for owner in fused_node.owners]
            if not owners:
                break
            chosen = select_calls(hierarchy, (*chosen.calls, *owners))
        return chosen.calls


def _describe_identity(call: ModuleCall, result: IdentityResult, reason: str) -> str:
    name = _call_text(call)
    if result.stored:
        names = some_of(list(result.types))
        return f"{name} was folded into a constant: the file is given nothing and returns {names}"
    if result.certain:
        return f"{name} has no node: it returns what it is given"
    return f"{name} has no node ({reason}): the file returns what it is given; --verify tells whether it does"


def _check_paths(selection: CutSelection, in_the_way: Sequence[ModuleCall]) -> None:
    if in_the_way:
        verb, them = ("lies", "it") if len(in_the_way) == 1 else ("lie", "them")
        raise CutImpossible(
            f"{_calls_text(in_the_way)} {verb} between the parts of {' '.join(selection.asked)}",
            f"Ask for {them} as well, or for the module around all of them: {_call_text(selection.root)}.",
            (selection.root,),
        )


def _check_connected(cut: Cut, nest: NestedGraph) -> None:
    """A file of parts that have nothing to do with each other is several files."""
    parts = UnionFind(cut.nodes)
    first_touching: dict[str, Node] = {}
    for node in cut.nodes:
        # A weight connects nothing: tied embeddings would join the two ends of a model.
        read = (value for value in nest.values_read(node) if value not in nest.graph.initializers)
        for value in (*read, *filter(None, node.outputs)):
            parts.join(first_touching.setdefault(value, node), node)
    starts = [group[0].name or group[0].key for group in parts.groups()]
    if len(starts) > 1:
        raise CutImpossible(
            f"{' '.join(cut.selection.asked)} is {len(starts)} parts that do not read from each other or from the same "
            f"value: they begin with {some_of(starts)}",
            f"Cut them one by one, or the module around all of them: {_call_text(cut.selection.root)}.",
            (cut.selection.root,),
        )


def _calls_text(calls: Iterable[ModuleCall]) -> str:
    return some_of([_call_text(call) for call in calls])


def _call_text(call: ModuleCall) -> str:
    return str(call) or ROOT_NAME
