"""Dataflow and weights: claims for what nothing names, from neighbours, from the names of weights, from their content.

Neighbours. A constant, or arithmetic on shapes alone, exists for the nodes that read it. Any other node lies between
what it reads and what reads it, and belongs to the innermost call that encloses both sides:

    MatMul (layer.0.fc1) ─► Mul (?) ─► MatMul (layer.0.fc2)      Mul is layer.0's, INFERRED

What only decides which body runs, or how often, exists for the node that runs it: whoever branches asks.

    MatMul (fc1) ─► ReduceSum (?) ─► Greater (?) ─► If (gate)      both are gate's, INFERRED

Names. A node that reads a module's weight was, as a rule, issued by that module. Folding, fusion and deduplication move
weights: `claim_folded_`, `claim_absorbed_` and `claim_replaced_parameters` add the modules that held them.

Content. A file that was renamed throughout still has the model's weights (`claim_weights_by_content`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from modelexport.attribute.matched_values import ValueIndex, data_values
from modelexport.graph.index import KEY_SEPARATOR, Graph, Node
from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import GraphValues, Trace

_RETURNED = (Evidence(EvidenceKind.DATAFLOW, "returned by"),)
# By operator: the inputs that decide which body runs, and how often.
_DECIDING_INPUTS: Mapping[str, tuple[int, ...]] = {"If": (0,), "Loop": (0, 1)}


def claim_by_dataflow(
    graph: Graph, hierarchy: Hierarchy, known: Mapping[str, Claim], strategy: str, *, returned: bool = True
) -> dict[str, Claim]:
    """Claims for every node without one in `known` that is connected, by whatever way, to a node with one.

    returned  whatever leaves the graph was handed out by the model itself
    """
    claims: dict[str, Claim] = {}
    # One round goes up and down the flow; the next turn corners: a constant whose one reader was inferred by then.
    while inferred := _infer_once(graph, hierarchy, {**known, **claims}, strategy):
        if not returned:
            inferred = {key: claim for key, claim in inferred.items() if claim.evidence != _RETURNED}
            if not inferred:
                break
        claims |= inferred
    return claims


def _infer_once(graph: Graph, hierarchy: Hierarchy, known: Mapping[str, Claim], strategy: str) -> dict[str, Claim]:
    claimed = _ClaimedGraph(graph, hierarchy, known, _find_deciding(graph))
    open_nodes = [node for node in graph.nodes if node.key not in known]
    above = claimed.sweep(open_nodes, graph.predecessors)
    below = claimed.sweep(reversed(open_nodes), graph.successors)
    # Whose work a body is says the node that runs it: that one first.
    ready = [node for node in open_nodes if claimed.is_main(node) or claimed.callers(node)]
    for nodes in (ready, open_nodes):
        keys = ((node, above.get(node.key), below.get(node.key)) for node in nodes)
        claims = ((node.key, _infer_node(claimed, node, upper, lower, strategy)) for node, upper, lower in keys)
        if inferred := {key: claim for key, claim in claims if claim is not None}:
            return inferred
    return {}


def _find_deciding(graph: Graph) -> frozenset[str]:
    """Keys of nodes that make nothing but what decides which bodies run."""
    deciding: set[str] = set()
    returned = {value for values in graph.body_outputs.values() for value in values}.union(graph.outputs)
    for node in reversed(graph.running_order) if graph.body_owner else ():
        uses = [use for value in node.outputs for use in graph.uses.get(value, ())]
        if uses and returned.isdisjoint(node.outputs) and all(_decides(*use) or use[0].key in deciding for use in uses):
            deciding.add(node.key)
    return frozenset(deciding)


def _decides(reader: Node, index: int) -> bool:
    return index in _DECIDING_INPUTS.get(reader.operator, ())


def claim_initializers_by_dataflow(
    graph: Graph, hierarchy: Hierarchy, nodes: Mapping[str, Claim], known: Mapping[str, Claim], strategy: str
) -> dict[str, Claim]:
    """Initializers without a parameter's name belong to the nodes that read them."""
    claimed = _ClaimedGraph(graph, hierarchy, nodes)
    claims: dict[str, Claim] = {}
    for name in graph.initializers:
        readers = graph.consumers.get(name, ()) if name not in known else ()
        reading = [nodes[reader.key] for reader in readers if reader.key in nodes]
        paths = {call.path for claim in reading for call in claim.owners}
        enclosing = claimed.enclosing(reading)
        # A weight is a module's, not a call's: several calls of one module read the same one. And what is read by
        # one fused node belongs to all that it was fused from.
        if len(paths) == 1 or len(reading) == 1:
            claims[name] = _claim_inferred(tuple(map(ModuleCall, sorted(paths))), "read by", strategy)
        elif enclosing is not None:
            claims[name] = _claim_inferred((enclosing,), "read by", strategy)
    return claims


@dataclass(frozen=True, slots=True)
class _ClaimedGraph:
    graph: Graph
    hierarchy: Hierarchy
    known: Mapping[str, Claim]
    deciding: frozenset[str] = frozenset()

    def enclosing(self, claims: Iterable[Claim]) -> ModuleCall | None:
        return self.hierarchy.common_ancestor({call for claim in claims for call in claim.owners})

    def sweep(self, nodes: Iterable[Node], neighbours: Callable[[Node], Iterable[Node]]) -> dict[str, ModuleCall]:
        """For each unclaimed node, the call that encloses its nearest claimed neighbours on one side."""
        near: dict[str, ModuleCall] = {}
        for node in nodes:  # in topological order, or its reverse: one pass reaches everything
            calls = {neighbour.key: self._call_of(neighbour, near) for neighbour in neighbours(node)}
            known = {key: call for key, call in calls.items() if call is not None}
            # A constant is shared by whatever reads it, so where there is data it says nothing of who reads it here.
            data = [call for key, call in known.items() if key in self.graph.computed]
            call = self.hierarchy.common_ancestor(data or known.values())
            if call is not None:
                near[node.key] = call
        return near

    def _call_of(self, node: Node, near: Mapping[str, ModuleCall]) -> ModuleCall | None:
        claim = self.known.get(node.key)
        return near.get(node.key) if claim is None else self.enclosing([claim])

    def callers(self, node: Node) -> tuple[ModuleCall, ...]:
        """For a node in a subgraph or a function, the calls of the nodes that run it; a function may have several."""
        claims = [self.known[key] for key in self.graph.callers.get(node.graph, ()) if key in self.known]
        calls = (self.enclosing([claim]) for claim in claims)
        return tuple(dict.fromkeys(call for call in calls if call is not None))

    def is_main(self, node: Node) -> bool:
        return node.graph not in self.graph.callers

    def confine(self, node: Node, call: ModuleCall) -> ModuleCall:
        """The call, if it ran inside of that of the node whose body this is; else that one.

            If (attention) ─► then_branch: Constant ─► Unsqueeze      both are attention's

        What a body reads from outside says nothing of who runs it.
        """
        callers = self.callers(node)
        outside = len(callers) == 1 and callers[0] not in self.hierarchy.stack(call)
        return callers[0] if outside else call


def _infer_node(
    claimed: _ClaimedGraph, node: Node, above: ModuleCall | None, below: ModuleCall | None, strategy: str
) -> Claim | None:
    """From the calls that enclose the nearest claimed nodes above and below."""
    call, how = (above, "made from") if below is None else (below, "made for")
    between = node.key in claimed.graph.computed and node.key not in claimed.deciding
    if above is not None and below is not None and between:
        call, how = claimed.hierarchy.common_ancestor((above, below)), "between"
        if call is None:
            return None  # two streams that nothing encloses
    if call is not None:
        return _claim_inferred((claimed.confine(node, call),), how, strategy)
    callers = claimed.callers(node)
    if callers:
        return _claim_inferred(callers, "inside the body of", strategy)
    returned = not set(node.outputs).isdisjoint(claimed.graph.outputs)
    return Claim((ModuleCall(ROOT),), Confidence.INFERRED, _RETURNED, strategy) if returned else None


def _claim_inferred(calls: tuple[ModuleCall, ...], how: str, strategy: str) -> Claim:
    return Claim(calls, Confidence.INFERRED, (Evidence(EvidenceKind.DATAFLOW, how),), strategy)


def claim_parameter_readers(hierarchy: Hierarchy, nodes: Iterable[Node], strategy: str) -> dict[str, Claim]:
    """Claims for those of `nodes` that read, or pass on under its own name, the parameter of exactly one module.

    Whoever calls a module may read its weight instead of running it, and then issued the operator. So of a module that
    was not seen running it is a guess:    functional.linear(x, self.fc.weight)
    """
    by_module: dict[str, list[Node]] = {}
    for node in nodes:
        holders = _parameter_holders(node, hierarchy)
        if len(holders) == 1:
            by_module.setdefault(next(iter(holders)), []).append(node)
    claims: dict[str, Claim] = {}
    for path, readers in by_module.items():
        calls = hierarchy.calls_of(path)
        evidence = (Evidence(EvidenceKind.PARAMETER, "reads", path),)
        confidence = Confidence.STRONG if calls else Confidence.INFERRED
        for node, owners in _pair_readers(readers, calls or (ModuleCall(path),), hierarchy):
            claims[node.key] = Claim(owners, confidence, evidence, strategy)
    return claims


def _pair_readers(
    readers: Sequence[Node], calls: Sequence[ModuleCall], hierarchy: Hierarchy
) -> Iterator[tuple[Node, tuple[ModuleCall, ...]]]:
    """Readers of one module's parameters, each with its call, if a parameter has one reader for each, in their order.

    Else nothing tells the calls apart. A body that runs twice has one reader of the weight and one of the bias: each
    is in both calls.
    """
    by_parameter: dict[tuple[str, ...], list[Node]] = {}
    for node in readers:
        by_parameter.setdefault(tuple(_parameters_of(node, hierarchy)), []).append(node)
    for alike in by_parameter.values():
        paired = [(call,) for call in calls] if len(alike) == len(calls) else [tuple(calls)] * len(alike)
        yield from zip(alike, paired, strict=True)


def claim_named_initializers(graph: Graph, hierarchy: Hierarchy, strategy: str) -> dict[str, Claim]:
    """Initializers that carry a parameter's name belong to the module that holds it."""
    evidence = (Evidence(EvidenceKind.PARAMETER, "name"),)
    holders = ((name, hierarchy.tensor_owners.get(name, ())) for name in graph.initializers)
    # A tied weight has several owners.
    owners = {name: tuple(map(ModuleCall, paths)) for name, paths in holders if paths}
    return {name: Claim(calls, Confidence.EXACT, evidence, strategy) for name, calls in owners.items()}


def claim_folded_parameters(
    claims: Mapping[str, Claim], sources: Mapping[str, Iterable[Node]], hierarchy: Hierarchy
) -> dict[str, Claim]:
    """Claims of folded initializers, with the modules whose parameters were folded into them as owners too."""
    read = {name: [value for node in nodes for value in node.inputs] for name, nodes in sources.items()}
    holders = {name: _holders_of(values, hierarchy) for name, values in read.items()}
    return _add_owners(claims, holders, Evidence(EvidenceKind.PARAMETER, "folded"))


def claim_replaced_parameters(
    claims: Mapping[str, Claim], stands_for: Mapping[str, Iterable[str]], hierarchy: Hierarchy
) -> dict[str, Claim]:
    """Claims of initializers that took the place of other parameters, with the modules that hold those as owners."""
    holders = {name: _holders_of(replaced, hierarchy) for name, replaced in stands_for.items()}
    firm = {name: claim for name, claim in claims.items() if claim.confidence > Confidence.INFERRED}
    evidence = Evidence(EvidenceKind.PARAMETER, "replaced")
    # Where only the readers had been known, the parameter itself is the better witness.
    replacing = {
        name: Claim(tuple(map(ModuleCall, paths)), Confidence.STRONG, (evidence,), claims[name].strategy)
        for name, paths in holders.items()
        if paths and name in claims and name not in firm
    }
    return replacing | _add_owners(firm, holders, evidence)


def claim_absorbed_parameters(
    graph: Graph, hierarchy: Hierarchy, claims: Mapping[str, Claim], fused: Mapping[str, Claim], weights: Iterable[str]
) -> dict[str, Claim]:
    """Claims of those `weights` that a fused node reads; modules whose parameters are gone into it own them too."""
    present = {path for name in graph.initializers for path in hierarchy.parameter_owners.get(name, ())}
    holders: dict[str, list[str]] = {}
    for name in weights:
        readers = [fused[node.key] for node in graph.consumers.get(name, ()) if node.key in fused]
        paths = dict.fromkeys(call.path for claim in readers for call in claim.owners)
        holders[name] = [path for path in paths if hierarchy.modules[path].parameters and path not in present]
    return _add_owners(claims, holders, Evidence(EvidenceKind.PARAMETER, "absorbed"))


def _holders_of(names: Iterable[str], hierarchy: Hierarchy) -> list[str]:
    return [path for name in names for path in hierarchy.parameter_owners.get(name, ())]


def _add_owners(
    claims: Mapping[str, Claim], holders: Mapping[str, Iterable[str]], evidence: Evidence
) -> dict[str, Claim]:
    """Claims with further owners; those that have them already are left out."""
    widened: dict[str, Claim] = {}
    for name, paths in holders.items():
        claim = claims.get(name)
        known = set() if claim is None else {call.path for call in claim.owners}
        added = [ModuleCall(path) for path in dict.fromkeys(paths) if path not in known]
        if claim is not None and added:
            widened[name] = replace(claim, owners=(*claim.owners, *added), evidence=(*claim.evidence, evidence))
    return widened


def _parameter_holders(node: Node, hierarchy: Hierarchy) -> set[str]:
    return {path for name in _parameters_of(node, hierarchy) for path in hierarchy.tensor_owners[name]}


def _parameters_of(node: Node, hierarchy: Hierarchy) -> list[str]:
    """The names of the parameters that a node reads or, if it bears the name of some, of those."""
    # A copy of a de-duplicated weight reads one parameter and bears the name of another: the name counts.
    made, read = ([_local_name(value) for value in values] for values in (node.outputs, node.inputs))
    known = hierarchy.tensor_owners
    return [name for name in made if name in known] or [name for name in read if name in known]


def _local_name(value: str) -> str:
    """A value's own name, without the graph that it is defined in."""
    return value.rpartition(KEY_SEPARATOR)[2]


def claim_weights_by_content(
    graph: Graph, hierarchy: Hierarchy, trace: Trace, values: GraphValues, strategy: str
) -> dict[str, Claim]:
    """Initializers that hold one module's weight, or what a module made of weights alone."""
    index = ValueIndex(trace)
    data = data_values(trace)
    holders = _WeightHolders(trace, hierarchy)
    claims: dict[str, Claim] = {}
    for name in graph.initializers:
        fingerprint = values.prints.get(name)
        if fingerprint is None or not fingerprint.distinctive:
            continue
        copies = index.copies(fingerprint)
        owners = holders.paths([number for number in copies or index.matches(fingerprint) if number not in data])
        if owners:
            # What is nearly the same was made narrower, or has something else folded into it.
            confidence = Confidence.EXACT if copies else Confidence.STRONG
            evidence = Evidence(EvidenceKind.PARAMETER, "content")
            claims[name] = Claim(tuple(map(ModuleCall, owners)), confidence, (evidence,), strategy)
    return claims


class _WeightHolders:
    """The modules that hold the values of a run which depend on weights alone."""

    def __init__(self, trace: Trace, hierarchy: Hierarchy) -> None:
        self._paths_of: dict[int, frozenset[str]] = {}
        self._derived: set[int] = set()
        for name, number in trace.tensors.items():
            owners = hierarchy.tensor_owners.get(name, ())
            self._paths_of[number] = self._paths_of.get(number, frozenset()).union(owners)
        for op in trace.ops:
            if op.inputs and all(value in self._paths_of for value in op.inputs):
                # Whoever rearranges a weight for its own use: a tied weight has several holders, its transposition one.
                self._paths_of.update({output: frozenset({op.call.path}) for output in op.outputs})
                self._derived.update(op.outputs)

    def paths(self, numbers: Sequence[int]) -> list[str]:
        """The modules whose weight it is; none where several weights hold the same, or a constant and a weight."""
        known = [number for number in numbers if number in self._paths_of]
        weights = [number for number in known if number not in self._derived]
        if len(weights) > 1 or any(number not in self._paths_of for number in numbers):
            return []
        return sorted(set().union(*(self._paths_of[number] for number in weights or known)))
