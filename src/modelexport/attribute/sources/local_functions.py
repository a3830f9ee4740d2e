"""Local functions: a function that an exporter wrote for a module, called once for each call of the module.

    main graph   y = pkg.Block(x, w0, b0)      z = pkg.Block(y, w1, b1)
    function     pkg::Block(x, w, b): MatMul, Add, Relu          -> modules Block and Block_1, three nodes in each

Exporters also write functions for operators (`pkg.onnxscript.torch_lib::aten_gelu`). A module has weights, and the
weights of a function are given to it by its caller: so a function is a module if a call of it gets an initializer that
is no scalar, itself or for a function inside of it.
https://onnx.ai/onnx/repo-docs/IR.html#functions
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.attribute.sources.reading import Reading, is_module_path
from modelexport.graph.index import MAIN, Graph, Node
from modelexport.record.hierarchy import ROOT, join
from modelexport.record.provenance import Confidence

FUNCTIONS = "local functions"
# Functions may call functions many times over, and then a small file unfolds to more modules than anybody can read.
_MOST_CALLS = 5_000


def read_functions(graph: Graph) -> Reading | None:
    calls = _FunctionCalls(graph)
    paths = calls.paths_by_function
    if not paths:
        return None
    nodes = {node.key: paths[node.graph] for node in graph.nodes if node.graph in paths}
    nodes.update((key, (path,)) for key, path in calls.paths_by_caller.items())
    return Reading(FUNCTIONS, Confidence.STRONG, nodes)


@dataclass(frozen=True)
class _FunctionCalls:
    graph: Graph

    @cached_property
    def _weighted(self) -> frozenset[str]:
        """Functions that some call gives a weight to."""
        weights = {name for name, tensor in self.graph.initializers.items() if tensor.shape}
        given = (node.function for node in self.graph.nodes if not weights.isdisjoint(node.inputs))
        weighted = {function for function in given if function in self.graph.body_outputs}
        # Weights that a function gets for the functions inside of it reach them as its own inputs.
        inside = set(weighted)
        while inside:
            members = (node for function in inside for node in self.graph.members.get(function, ()))
            inside = {node.function for node in members if node.function in self.graph.body_outputs} - weighted
            reached = {function for function in inside if self._takes_inputs_of_caller(function)}
            weighted |= reached
            inside = reached
        return frozenset(weighted)

    def _takes_inputs_of_caller(self, function: str) -> bool:
        callers = (self.graph.by_key[key] for key in self.graph.callers.get(function, ()))
        passed_on = (set(self.graph.body_inputs.get(caller.graph, ())) & set(caller.inputs) for caller in callers)
        return any(passed_on)

    @cached_property
    def paths_by_function(self) -> Mapping[str, tuple[str, ...]]:
        """By the id of a function: the module paths that it is the body of, one for each call."""
        paths: dict[str, dict[str, None]] = {}
        for _, path, function in self._listed.calls:
            paths.setdefault(function, {})[path] = None
        # Some of the owners would look like all of them.
        partly = self._reachable(self._listed.left_out)
        return {function: tuple(several) for function, several in paths.items() if function not in partly}

    @cached_property
    def paths_by_caller(self) -> Mapping[str, str]:
        """By the key of a node in the main graph that calls one: the path of the module that it is."""
        return {node.key: path for node, path, _ in self._listed.calls if node.graph == MAIN}

    @cached_property
    def _listed(self) -> _ListedCalls:
        calls: list[tuple[Node, str, str]] = []
        left_out: set[str] = set()
        waiting = deque([(MAIN, ROOT)])
        while waiting:
            graph_id, path = waiting.popleft()
            numbers: dict[str, int] = {}
            for node in self._inner_calls(graph_id):
                name = node.op_type.replace(".", "_")
                number = numbers.get(name, 0)
                numbers[name] = number + 1
                inner = join(path, f"{name}_{number}" if number else name)
                if len(calls) < _MOST_CALLS and is_module_path(inner):
                    calls.append((node, inner, node.function))
                    waiting.append((node.function, inner))
                else:
                    left_out.add(node.function)
        return _ListedCalls(tuple(calls), frozenset(left_out))

    def _inner_calls(self, graph_id: str) -> Iterator[Node]:
        return (node for node in self.graph.members.get(graph_id, ()) if node.function in self._weighted)

    def _reachable(self, functions: frozenset[str]) -> set[str]:
        """Functions, and those that they call, however deep."""
        reached = set(functions)
        waiting = [*functions]
        while waiting:
            called = {node.function for node in self._inner_calls(waiting.pop())} - reached
            reached |= called
            waiting += called
        return reached


@dataclass(frozen=True)
class _ListedCalls:
    """
    calls     outer ones first, else in the order of the file, with the path and the function of each
    left_out  functions with calls that are not listed
    """

    calls: tuple[tuple[Node, str, str], ...]
    left_out: frozenset[str]
