"""Claims from the scopes that the dynamo exporter writes into node metadata."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from functools import lru_cache

from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.evidence import Claim, Confidence, Evidence, EvidenceKind
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.signals import ExporterScopes

SCOPES_KEY = "pkg.torch.onnx.name_scopes"


def dynamo_claims(graph: Graph, hierarchy: Hierarchy, scopes: ExporterScopes, strategy: str) -> dict[str, Claim]:
    """Claims from scopes; calls of one module that the file does not number are told apart by the order of nodes."""
    claims: dict[str, Claim] = {}
    unnumbered: dict[tuple[ModuleCall, ...], list[Node]] = {}
    for node, calls in dynamo_calls(graph, hierarchy, scopes).items():
        if len(calls) > 1:
            unnumbered.setdefault(calls, []).append(node)
        else:
            claims[node.key] = _claim(calls[0], Confidence.EXACT, "", strategy)
    for calls, nodes in unnumbered.items():
        claims.update(_number_calls(nodes, calls, strategy))
    return claims


def dynamo_calls(graph: Graph, hierarchy: Hierarchy, scopes: ExporterScopes) -> dict[Node, tuple[ModuleCall, ...]]:
    """The call that each node's scope names; all calls of the module where nothing numbers them."""
    found: dict[Node, tuple[ModuleCall, ...]] = {}
    for node in graph.nodes:
        path, fx_name = _scope(node)
        path = None if path is None else hierarchy.canonical.get(path)
        # A path that is no module is a fake scope: the exporter did not know either.
        if path is None:
            continue
        known = scopes.fx_calls.get(fx_name) if node.graph == MAIN else None
        found[node] = (known,) if known is not None else hierarchy.calls_of(path) or (ModuleCall(path),)
    return found


def fx_node(node: Node) -> str:
    """The name of the FX node that a node was made from; empty where the exporter does not say."""
    return _scope(node)[1]


def _scope(node: Node) -> tuple[str | None, str]:
    """The innermost module path and the FX node that a node's metadata names."""
    text = node.metadata.get(SCOPES_KEY)
    names = _parse(text) if text else ()
    # The last name is the operator. Alone, it says that no module was open.
    return (names[-2], names[-1]) if len(names) > 1 else (None, "")


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[str, ...]:
    try:
        names = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        # All of them are ways of `literal_eval` to say that this is no literal.
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _claim(call: ModuleCall, confidence: Confidence, detail: str, strategy: str) -> Claim:
    return Claim((call,), confidence, (Evidence(EvidenceKind.SCOPE, "dynamo", detail),), strategy)


def _number_calls(nodes: Iterable[Node], calls: tuple[ModuleCall, ...], strategy: str) -> Mapping[str, Claim]:
    """Tell the calls of one module apart in a file that does not number them.

    The file lists nodes in the order in which they were issued, and each call of a module issues the same operators.
    Where that does not cut the nodes into equal runs, all calls share them.
    """
    listed = list(nodes)
    size, rest = divmod(len(listed), len(calls))
    runs = [listed[start : start + size] for start in range(0, len(listed), size or 1)]
    regular = not rest and all([node.op_type for node in run] == [node.op_type for node in runs[0]] for run in runs)
    if regular:
        pairs = [(node, call) for run, call in zip(runs, calls, strict=True) for node in run]
        return {
            node.key: _claim(call, Confidence.STRONG, "calls told apart by order", strategy) for node, call in pairs
        }
    evidence = Evidence(EvidenceKind.SCOPE, "dynamo", "calls not told apart")
    return {node.key: Claim(calls, Confidence.STRONG, (evidence,), strategy) for node in listed}
