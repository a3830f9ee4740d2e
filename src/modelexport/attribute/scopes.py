"""Scopes: claims from what the exporters of torch write about modules into their nodes.

Dynamo writes a list into the node's metadata, outermost first, the name of the FX node last:

    pkg.torch.onnx.name_scopes = ['', 'encoder', 'encoder.fc', 'linear_3']       -> encoder.fc
    https://github.com/pytorch/pytorch/blob/main/torch/onnx/_internal/exporter/_core.py

TorchScript writes a scope and an operator into the node's name:

    /encoder/layer.0/attention/self/query/MatMul                                 -> encoder.layer.0.attention.self.query

The scope has one part for each module call that was open, and a part is the tail of that module's path that begins with
its last name that is not a number. This loses information (a ModuleDict's name, a parent whose `forward` was called
directly), so scopes are not parsed back: the scope that each recorded call *must* have is computed, and names are
looked up among those. The exporter makes scopes unique by numbering the deepest part, in the order of first use: the
scope of the second call with the same parts ends in `_1`.
https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/passes/onnx/naming.cpp

Where a module runs inside a construct that an exporter cannot look into (re-entrant checkpointing is one), its nodes
are credited to the module outside. It shows: the module was seen running, no node carries its scope, and a node that
is credited to a module around it reads its parameters. `mend_lost_scopes` gives such nodes back to it, and
parameterless nodes that lie between such nodes to the call that encloses them.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType

from modelexport.attribute.dataflow import claim_by_dataflow, claim_parameter_readers
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.signals import ExporterScopes

SCOPES_KEY = "pkg.torch.onnx.name_scopes"
_Calls = tuple[ModuleCall, ...]
_NO_PARTS: Mapping[str, str] = MappingProxyType({})


def claim_dynamo_scopes(graph: Graph, hierarchy: Hierarchy, scopes: ExporterScopes, strategy: str) -> dict[str, Claim]:
    """Claims from scopes; calls of one module that the file does not number are told apart by the order of nodes."""
    claims: dict[str, Claim] = {}
    unnumbered: dict[_Calls, list[Node]] = {}
    for node, calls in dynamo_calls(graph, hierarchy, scopes).items():
        if len(calls) > 1:
            unnumbered.setdefault(calls, []).append(node)
        else:
            # torch makes nodes in the scope of whoever reads them; the FX node knows who issued them.
            written = hierarchy.canonical[_scope(node)[0] or ""]
            refuted = "" if written == calls[0].path else f"Python frames refute {written}"
            claims[node.key] = _claim_dynamo(calls, Confidence.EXACT, refuted, strategy)
    for calls, nodes in unnumbered.items():
        claims.update(_number_calls(nodes, calls, strategy))
    return claims


def dynamo_calls(graph: Graph, hierarchy: Hierarchy, scopes: ExporterScopes) -> dict[Node, _Calls]:
    """The call that each node's scope names; all calls of the module where nothing numbers them."""
    calls_by_node: dict[Node, _Calls] = {}
    for node in graph.nodes:
        path, fx_name = _scope(node)
        path = None if path is None else hierarchy.canonical.get(path)
        # A path that is no module is a fake scope: the exporter did not know either.
        if path is None:
            continue
        # Inside subgraphs and functions FX numbers its nodes anew.
        known = scopes.fx_calls.get(fx_name) if node.graph == MAIN else None
        calls_by_node[node] = (known,) if known is not None else hierarchy.calls_of(path) or (ModuleCall(path),)
    return calls_by_node


def fx_node(node: Node) -> str:
    """The name of the FX node that a node was made from; empty where the exporter does not say."""
    return _scope(node)[1]


def _scope(node: Node) -> tuple[str | None, str]:
    """The innermost module path and the FX node that a node's metadata names."""
    names = _scope_names(node)
    # The last name is the operator. Alone, it says that no module was open.
    return (names[-2], names[-1]) if len(names) > 1 else (None, "")


def _fx_name(node: Node) -> str:
    """The FX node of a node, whether a module is named or not."""
    return (_scope_names(node) or ("",))[-1]


def _scope_names(node: Node) -> tuple[str, ...]:
    text = node.metadata.get(SCOPES_KEY)
    return parse_list(text) if text else ()


@lru_cache(maxsize=4096)  # an FX node becomes several ONNX nodes with one text
def parse_list(text: str) -> tuple[str, ...]:
    """The list of texts that dynamo wrote as a Python literal; empty for anything else."""
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # All of them are ways of `literal_eval` to say that this is no literal.
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def claim_same_fx_nodes(graph: Graph, known: Mapping[str, Claim], strategy: str) -> dict[str, Claim]:
    """Claims for nodes that torch made of the same FX node as a node in `known`: what was one operator has one issuer.

    Inside of bodies torch names no modules, and still says of which FX node it made a node:

        Transpose (reads y.weight)  linear      MatMul  linear      Add (reads y.bias)  linear      all are y's
    """
    issuers: dict[tuple[str, str], set[_Calls]] = {}
    unknown: dict[str, tuple[str, str]] = {}
    for node in graph.nodes:
        if name := _fx_name(node):
            claim = known.get(node.key)
            if claim is None:
                unknown[node.key] = (node.graph, name)
            else:
                issuers.setdefault((node.graph, name), set()).add(claim.owners)
    evidence = (Evidence(EvidenceKind.FX, "dynamo", "same operator"),)
    agreed = {made_of: next(iter(owners)) for made_of, owners in issuers.items() if len(owners) == 1}
    return {
        key: Claim(agreed[made_of], Confidence.STRONG, evidence, strategy)
        for key, made_of in unknown.items()
        if made_of in agreed
    }


def _claim_dynamo(calls: _Calls, confidence: Confidence, detail: str, strategy: str) -> Claim:
    return Claim(calls, confidence, (Evidence(EvidenceKind.SCOPE, "dynamo", detail),), strategy)


def _number_calls(nodes: list[Node], calls: _Calls, strategy: str) -> Mapping[str, Claim]:
    """Tell the calls of one module apart by order: each issues the same operators, and the file has the order of issue.

    Where that does not cut the nodes into equal runs, all calls share them.
    """
    size, rest = divmod(len(nodes), len(calls))
    runs = [nodes[start : start + size] for start in range(0, len(nodes), size or 1)]
    regular = not rest and all([node.op_type for node in run] == [node.op_type for node in runs[0]] for run in runs)
    if regular:
        how = "calls told apart by order"
        claims = [_claim_dynamo((call,), Confidence.STRONG, how, strategy) for call in calls]
        return {node.key: claim for run, claim in zip(runs, claims, strict=True) for node in run}
    undecided = _claim_dynamo(calls, Confidence.INFERRED, "calls not told apart", strategy)
    return dict.fromkeys((node.key for node in nodes), undecided)


def claim_torchscript_scopes(
    graph: Graph, hierarchy: Hierarchy, strategy: str, parts: Mapping[str, str] = _NO_PARTS
) -> dict[str, Claim]:
    """Claims from scopes; where one has several meanings, parameters and the order of nodes narrow them down."""
    named = torchscript_calls(graph, hierarchy, parts)
    narrowed = {node: _narrow_by_parameters(calls, node, hierarchy) or calls for node, calls in named.items()}
    in_time = _narrow_by_time(narrowed, hierarchy)
    return {node.key: _claim_torchscript(calls, strategy) for node, calls in in_time.items()}


def torchscript_calls(graph: Graph, hierarchy: Hierarchy, parts: Mapping[str, str] = _NO_PARTS) -> dict[Node, _Calls]:
    """The calls that each node's scope can stand for; `parts` are the names in TorchScript's own module map, if any."""
    scopes: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if (scope := scope_of(node)) is not None:
            scopes.setdefault(scope, []).append(node)
    meanings = _meanings(hierarchy, scopes, parts)
    return {node: meanings[scope] for scope, nodes in scopes.items() if scope in meanings for node in nodes}


def scope_of(node: Node) -> str | None:
    """The scope part of a node's name; None where the exporter gave it none."""
    return node.name.rpartition("/")[0] if node.name.startswith("/") else None


def expected_scope(stack: Sequence[ModuleCall], parts: Mapping[str, str] = _NO_PARTS) -> str:
    """The scope, not numbered yet, of nodes issued while these calls were open (root first)."""
    return "".join(f"/{parts.get(call.path) or part_of(call.path)}" for call in stack[1:])


def part_of(path: str) -> str:
    """What TorchScript writes for a module: the tail of its path from the last name that is not a number."""
    names = path.split(".")
    first = next((index for index in reversed(range(len(names))) if not names[index].isnumeric()), 0)
    return ".".join(names[first:])


def _claim_torchscript(calls: _Calls, strategy: str) -> Claim:
    if len(calls) == 1:
        return Claim(calls, Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, "torchscript"),), strategy)
    evidence = Evidence(EvidenceKind.SCOPE, "torchscript", f"one of {', '.join(map(str, calls))}")
    # The module is known; which of its calls it was is a guess, and the first is as good as any.
    owners = calls[:1] if len({call.path for call in calls}) == 1 else calls
    return Claim(owners, Confidence.INFERRED, (evidence,), strategy)


def _narrow_by_time(candidates: dict[Node, _Calls], hierarchy: Hierarchy) -> dict[Node, _Calls]:
    """Rule out calls that were over or not begun at a node's place in the file, which has the order of issue."""
    if all(len(calls) == 1 for calls in candidates.values()):
        return candidates
    begin, end = _spans(hierarchy)
    ordered = sorted(candidates, key=lambda node: node.position)
    # Constants are moved around freely; they say nothing about time.
    fixed = [node for node in ordered if len(candidates[node]) == 1 and node.operator != "Constant"]
    known = {node: candidates[node][0] for node in fixed}
    begun = accumulate((begin[known[node]] if node in known else 0 for node in ordered), max)
    last = len(hierarchy.calls)
    ended = accumulate((end[known[node]] if node in known else last for node in reversed(ordered)), min)
    earliest, latest = dict(zip(ordered, begun, strict=True)), dict(zip(reversed(ordered), ended, strict=True))
    return {
        node: tuple(call for call in calls if end[call] >= earliest[node] and begin[call] <= latest[node]) or calls
        for node, calls in candidates.items()
    }


def _spans(hierarchy: Hierarchy) -> tuple[Mapping[ModuleCall, int], Mapping[ModuleCall, int]]:
    """For each call, its index in the order of calls, and that of the last call that was made inside of it."""
    begin = hierarchy.call_order
    end = dict(begin)
    for site in reversed(hierarchy.calls):
        if site.parent is not None:
            end[site.parent] = max(end[site.parent], end[site.call])
    return begin, end


def _meanings(hierarchy: Hierarchy, scopes: Mapping[str, list[Node]], parts: Mapping[str, str]) -> dict[str, _Calls]:
    groups: dict[str, list[ModuleCall]] = {}
    for site in hierarchy.calls:
        groups.setdefault(expected_scope(hierarchy.stack(site.call), parts), []).append(site.call)
    candidates: dict[str, list[ModuleCall]] = {}
    for scope, calls in groups.items():
        names = (f"{scope}_{number}" if number else scope for number in range(len(calls)))
        used = [name for name in names if name in scopes]
        # A call that left no node took no number. So the k-th number is one of the calls from the k-th on that leaves
        # enough calls for the numbers behind it.
        spare = len(calls) - len(used)
        for index, name in enumerate(used):
            candidates.setdefault(name, []).extend(calls[index : index + spare + 1])
    return {name: tuple(calls) for name, calls in candidates.items()}


def _narrow_by_parameters(calls: _Calls, node: Node, hierarchy: Hierarchy) -> _Calls:
    """`fc_1` is a module of that name or the second call of `fc`: the parameters that a node reads decide."""
    if len({call.path for call in calls}) == 1:
        return calls
    owners = {path for value in node.inputs for path in hierarchy.tensor_owners.get(value, ())}
    return tuple(call for call in calls if call.path in owners)


def mend_lost_scopes(
    graph: Graph, hierarchy: Hierarchy, claims: Mapping[str, Claim], strategy: str
) -> dict[str, Claim]:
    """Replacements for claims that contradict what was seen running; empty for a sound export."""
    named = {call.path for claim in claims.values() for call in claim.owners}
    ran = {site.call.path for site in hierarchy.calls if hierarchy.modules[site.call.path].parameters}
    unseen = ran - named
    if not unseen:
        return {}
    held = {value for value, paths in hierarchy.tensor_owners.items() if not unseen.isdisjoint(paths)}
    suspects = [node for node in graph.nodes if node.key in claims and not held.isdisjoint(node.inputs)]
    readers = claim_parameter_readers(hierarchy, suspects, strategy)
    stacks = {key: [hierarchy.stack(call) for call in claim.owners] for key, claim in readers.items()}
    # A scope is closed too early, never opened too early: the module lies inside of the one that is named.
    lost = [key for key in readers if all(claims[key].owners[0] in stack for stack in stacks[key])]
    mended = {key: readers[key] for key in lost}
    return mended | _mend_between(graph, hierarchy, claims, mended, strategy)


def _mend_between(
    graph: Graph, hierarchy: Hierarchy, claims: Mapping[str, Claim], mended: Mapping[str, Claim], strategy: str
) -> dict[str, Claim]:
    """What the closed scopes say of the nodes around is doubtful too: settle those by dataflow."""
    doubtful = {call for key in mended for call in claims[key].owners}
    firm = {key: claim for key, claim in claims.items() if not doubtful & set(claim.owners)} | dict(mended)
    guesses = claim_by_dataflow(graph, hierarchy, firm, strategy)
    # A guess that leads to a module with a sound scope says nothing against the scope.
    around = {call for claim in mended.values() for owner in claim.owners for call in hierarchy.stack(owner)}
    between: dict[str, Claim] = {}
    for key, guess in guesses.items():
        if key in claims and around.issuperset(guess.owners):
            evidence = Evidence(EvidenceKind.SCOPE, "closed early", str(claims[key].owners[0]) or "root")
            between[key] = Claim(guess.owners, Confidence.INFERRED, (*guess.evidence, evidence), guess.strategy)
    return between
