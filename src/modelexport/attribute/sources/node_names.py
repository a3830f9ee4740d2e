"""Node names: scopes that exporters write into the names of nodes and values, separated by slashes.

    TorchScript          /encoder/layer.0/fc/MatMul                       -> encoder.layer.0.fc
    TensorFlow, Keras    StatefulPartitionedCall/model/dense_1/MatMul     -> model.dense_1
    JAX                  jax2tf_f/Net/Dense_0/einsum/Einsum               -> jax2tf_f.Net.Dense_0.einsum
    several, fused       model/a/Relu;model/a/BiasAdd                     -> model.a
    inlined              If_0_then_branch__Inline_0__/stft/Conv           -> stft

The last part is the operator. Values are named after the node that makes them (`/encoder/fc/MatMul_output_0`), and keep
that name where an optimizer gave the node another one.

TorchScript writes one part for each module call that was open, and a part is the tail of the module's path from its
last name that is not a number. So a part that repeats the tail of the part before it is a numbered child (`/net/net.0`
is net.0). The same scope at a later call ends in `_1`: it is a call of the same module if it reads the same weights,
and another module if it reads others. Names of parameters tell what a scope leaves out (the name of a ModuleDict).
https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/passes/onnx/naming.cpp
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.attribute.scopes import part_of
from modelexport.attribute.sources.parameter_names import ParameterUses, dotted_path
from modelexport.attribute.sources.reading import Reading
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node
from modelexport.record.hierarchy import ROOT, join, lineage_of
from modelexport.record.provenance import Confidence

TORCHSCRIPT = "TorchScript node names"
SLASHES = "node names"
_Scope = tuple[str, ...]
# ONNX's inliner puts the name of the call before the names of a body: https://onnx.ai/onnx/api/inliner.html
_INLINED = re.compile(r"^[^/]*(__|::)(?=/)")
_NUMBERED = re.compile(r"(.+)_(\d+)")
# Of the dataflow between nodes with a scope: how much more often than by chance both ends must lie in one scope.
_LEAST_COHERENCE = 0.15
_FEW_EDGES = 8


def read_node_names(graph: Graph) -> Reading | None:
    scopes = _scopes_by_node(graph)
    named = [scope for several in scopes.values() for scope in several]
    if not any(named) or not is_coherent(graph, scopes):
        return None
    rooted = sum(_INLINED.sub("", name).startswith("/") for node in graph.nodes for name in _names_of(node)[:1])
    if 2 * rooted > len(scopes):
        paths: Mapping[_Scope, str] = TorchScriptPaths(graph, scopes).paths
        source = TORCHSCRIPT
    else:
        paths = {scope: dotted_path(scope) for scope in set(named)}
        source = SLASHES
    nodes = {key: tuple(dict.fromkeys(paths[scope] for scope in several)) for key, several in scopes.items()}
    return Reading(source, Confidence.STRONG, nodes)


def _names_of(node: Node) -> list[str]:
    """Names with a scope: the node's own; if it has none, that of its first output."""
    output = node.outputs[0].rpartition(KEY_SEPARATOR)[2] if node.outputs else ""
    text = next((name for name in (node.name, output) if "/" in name), "")
    return list(filter(None, text.split(";")))


def _scopes_by_node(graph: Graph) -> dict[str, tuple[_Scope, ...]]:
    """By node key. TensorFlow names the body of a loop on its own (`while/mul`): it goes into the loop's scope."""
    scopes = {node.key: scopes for node in graph.nodes if (scopes := tuple(_scopes_of(node)))}
    outermost = {scope[:1] for node in graph.members.get(MAIN, ()) for scope in scopes.get(node.key, ())}
    for node in graph.nodes:
        owner = graph.body_owner.get(node.graph)
        if owner in scopes and not any(scope[:1] in outermost for scope in scopes.get(node.key, ())):
            scopes[node.key] = tuple((*scopes[owner][0], *scope) for scope in scopes.get(node.key, ((),)))
    return scopes


def _scopes_of(node: Node) -> Iterator[_Scope]:
    for name in _names_of(node):
        parts = _INLINED.sub("", name).split("/")[:-1]
        # A name that is inlined or TorchScript's begins with a slash, and so with an empty part.
        yield tuple(filter(None, parts))


def is_coherent(graph: Graph, scopes: Mapping[str, tuple[_Scope, ...]]) -> bool:
    """False for scopes that the dataflow refutes: nodes of one module are connected, names dealt anew are not.

    Both ends of an edge lie in one scope more often than by chance (modularity), at some depth. Scopes of a single
    node say nothing about it, and where there are no others, nothing is refuted.
    https://en.wikipedia.org/wiki/Modularity_(networks)
    """
    first = {key: several[0] for key, several in scopes.items()}
    readers = ((node.key, reader.key) for node in graph.nodes for reader in graph.successors(node))
    edges = [(first[source], first[reader]) for source, reader in readers if source in first and reader in first]
    deepest = max(map(len, first.values()))
    shares = [_modularity(edges, first.values(), depth) for depth in range(1, deepest + 1)]
    measured = [share for share in shares if share is not None]
    return not measured or max(measured) >= _LEAST_COHERENCE


def _modularity(edges: Iterable[tuple[_Scope, _Scope]], scopes: Iterable[_Scope], depth: int) -> float | None:
    """0 for scopes at random, 1 where no edge leaves its scope; None if too few edges could stay inside of one."""
    sizes = Counter(scope[:depth] for scope in scopes)
    pairs = [(source[:depth], reader[:depth]) for source, reader in edges]
    pairs = [pair for pair in pairs if sizes[pair[0]] > 1]
    by_chance = sum(count * count for count in sizes.values()) / sizes.total() ** 2
    if len(pairs) < _FEW_EDGES or by_chance == 1:
        return None
    inside = sum(source == reader for source, reader in pairs) / len(pairs)
    return (inside - by_chance) / (1 - by_chance)


@dataclass(frozen=True)
class TorchScriptPaths:
    """The module path of every scope in a graph that TorchScript's exporter named."""

    graph: Graph
    scopes: Mapping[str, tuple[_Scope, ...]]

    @cached_property
    def paths(self) -> Mapping[_Scope, str]:
        paths: dict[_Scope, str] = {(): ROOT}
        # Outer scopes first: a path grows from that of the scope around.
        for scope in sorted(self._all_scopes, key=len):
            if scope:
                paths[scope] = self._path_of(scope, paths)
        return paths

    @cached_property
    def _all_scopes(self) -> frozenset[_Scope]:
        used = {scope for several in self.scopes.values() for scope in several}
        return frozenset(scope[:depth] for scope in used for depth in range(len(scope) + 1))

    @cached_property
    def _parameters(self) -> ParameterUses:
        return ParameterUses(self.graph)

    @cached_property
    def _known_paths(self) -> frozenset[str]:
        return frozenset(above for path in self._parameters.known_paths for above in lineage_of(path))

    @cached_property
    def _paths_by_part(self) -> Mapping[str, tuple[str, ...]]:
        paths: dict[str, list[str]] = {}
        for path in sorted(self._known_paths - {ROOT}):
            paths.setdefault(part_of(path), []).append(path)
        return {part: tuple(several) for part, several in paths.items()}

    def _path_of(self, scope: _Scope, paths: Mapping[_Scope, str]) -> str:
        above, part = paths[scope[:-1]], scope[-1]
        numbered = _NUMBERED.fullmatch(part)
        first_call = (*scope[:-1], numbered[1]) if numbered else None
        if first_call in self._all_scopes and join(above, part) not in self._known_paths:
            assert first_call is not None
            if self._read_same_weights(scope, first_call):
                # Sorted by length alone, a first call may come later.
                return paths.get(first_call) or self._path_of(first_call, paths)
        if above and part.startswith(f"{part_of(above)}."):
            return above + part.removeprefix(part_of(above))
        return self._complete_path(above, part)

    def _complete_path(self, above: str, part: str) -> str:
        """The path below `above` that the part is the tail of, if parameters know just one; else the part itself."""
        direct = join(above, part)
        if direct in self._known_paths:
            return direct
        prefix = f"{above}." if above else ""
        longer = [path for path in self._paths_by_part.get(part, ()) if path.startswith(prefix)]
        return longer[0] if len(longer) == 1 else direct

    def _read_same_weights(self, scope: _Scope, other: _Scope) -> bool:
        own, others = (self._weights_below.get(each, frozenset()) for each in (scope, other))
        return own == others or not own or not others

    @cached_property
    def _weights_below(self) -> Mapping[_Scope, frozenset[str]]:
        """By scope: the initializers that nodes in it, and in scopes inside of it, read."""
        weights: dict[_Scope, set[str]] = {}
        for node in self.graph.nodes:
            read = [self._stored_as(value) for value in node.inputs if self._is_weight(self._stored_as(value))]
            for scope in self.scopes.get(node.key, ()) if read else ():
                for depth in range(1, len(scope) + 1):
                    weights.setdefault(scope[:depth], set()).update(read)
        return {scope: frozenset(several) for scope, several in weights.items()}

    def _stored_as(self, value: str) -> str:
        """The initializer that a value is a copy of: each call of a module may read a copy of its own."""
        while (maker := self.graph.producers.get(value)) is not None and maker.operator == "Identity":
            value = maker.inputs[0]
        return value

    def _is_weight(self, value: str) -> bool:
        tensor = self.graph.initializers.get(value)
        # Scalars are constants that many modules share.
        return tensor is not None and bool(tensor.shape)
