"""Node names: scopes that exporters write into the names of nodes and values, separated by slashes.

    TorchScript          /encoder/layer.0/fc/MatMul                       -> encoder.layer.0.fc
    TensorFlow, Keras    StatefulPartitionedCall/model/dense_1/MatMul     -> model.dense_1
    JAX                  jax2tf_f/Net/Dense_0/einsum/Einsum               -> jax2tf_f.Net.Dense_0.einsum
    several, fused       model/a/Relu;model/a/BiasAdd                     -> model.a
    inlined              If_0_then_branch__Inline_0__/stft/Conv           -> stft (`inlining.py`)

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
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.attribute.scopes import part_of
from modelexport.attribute.sources.coherence import FEW, is_refuted, measure_coherence
from modelexport.attribute.sources.inlining import InlinedNames
from modelexport.attribute.sources.parameter_names import ParameterUses, dotted_path
from modelexport.attribute.sources.reading import MOST_LEVELS, Reading, is_module_path
from modelexport.graph.index import KEY_SEPARATOR, MAIN, Graph, Node
from modelexport.record.hierarchy import ROOT, join, lineage_of, parent_path
from modelexport.record.provenance import Confidence, is_within

TORCHSCRIPT = "TorchScript node names"
SLASHES = "node names"
_Scope = tuple[str, ...]
# ONNX Runtime names a fused node after one of its sources and the fusion: `/encoder/fc/MatMul/MatMulScaleFusion/`.
_FUSION = re.compile(r"(/\w*Fusion)+/?$")
_NUMBERED = re.compile(r"(.+)_(\d+)")
# The share of nodes whose weights are another module's above which names of nodes are not believed. A fusion leaves
# a node the name of one module and the weights of another, so there are some in every optimized file.
_MOST_CONTRADICTED = 1 / 3


def read_node_names(graph: Graph) -> Iterator[Reading]:
    """Two readings: nodes whose own name and whose output's agree, or that have one of them; and the others."""
    inlined = InlinedNames(graph)
    scopes = _scopes_by_node(graph, inlined)
    named = [scope for several in scopes.values() for scope in several]
    edges = ((node.key, reader.key) for node in graph.nodes for reader in graph.successors(node))
    coherence = measure_coherence(edges, {key: several[0] for key, several in scopes.items()})
    if not any(named) or is_refuted(coherence):
        return
    uses = ParameterUses(graph)
    rooted = sum(inlined.split(name)[1].startswith("/") for node in graph.nodes for name in _names_of(node)[:1])
    if 2 * rooted > len(scopes):
        paths: Mapping[_Scope, str | None] = TorchScriptPaths(graph, scopes, uses).paths
        source = TORCHSCRIPT
    else:
        paths = {scope: dotted_path(scope) for scope in set(named)}
        source = SLASHES
    modules = {scope: path for scope, path in paths.items() if path is not None and is_module_path(path)}
    nodes = {
        key: tuple(dict.fromkeys(modules[scope] for scope in several))
        for key, several in scopes.items()
        if all(scope in modules for scope in several)
    }
    if not nodes or _is_contradicted(nodes, uses):
        return
    doubted = {node.key for node in graph.nodes if node.key in nodes and _has_two_scopes(node, inlined)}
    agreed = {key: several for key, several in nodes.items() if key not in doubted}
    yield Reading(source, Confidence.STRONG, agreed)
    if doubted:
        others = {key: nodes[key] for key in nodes if key in doubted}
        yield Reading(source, Confidence.INFERRED, others, detail="its output is named otherwise")


def _is_contradicted(nodes: Mapping[str, tuple[str, ...]], uses: ParameterUses) -> bool:
    """Whether the weights that nodes read are those of other modules, too often for a fusion here and there."""
    if not uses.are_borne_out:
        return False
    weighed = [(nodes[key], uses.readers[key]) for key in uses.certain if key in nodes]
    contradicted = sum(not any(_is_one_in_other(a, b) for a in named for b in read) for named, read in weighed)
    return len(weighed) >= FEW and contradicted > _MOST_CONTRADICTED * len(weighed)


def _is_one_in_other(path: str, other: str) -> bool:
    """A module may compute with weights of a module around it, or inside of it."""
    return is_within(path, other) or is_within(other, path)


def _has_two_scopes(node: Node, inlined: InlinedNames) -> bool:
    """Whether the output of a node is named after another scope than the node itself."""
    names = [_FUSION.sub("", inlined.split(name)[1]) for name in (node.name, _output_name(node))]
    own, made = (name.rpartition("/")[0] for name in names)
    return bool(own and made) and own != made


def _names_of(node: Node) -> list[str]:
    """Names with a scope: the node's own; if it has none, that of its first output."""
    text = next((name for name in (node.name, _output_name(node)) if "/" in _FUSION.sub("", name)), "")
    return list(filter(None, text.split(";")))


def _output_name(node: Node) -> str:
    return node.outputs[0].rpartition(KEY_SEPARATOR)[2] if node.outputs else ""


def _scopes_by_node(graph: Graph, inlined: InlinedNames) -> dict[str, tuple[_Scope, ...]]:
    """By node key. TensorFlow names the body of a loop on its own (`while/mul`): it goes into the loop's scope."""
    each = ((node.key, tuple(_scopes_of(node, inlined))) for node in graph.nodes)
    scopes = {key: several for key, several in each if several and _are_believed(several)}
    outermost = {scope[:1] for node in graph.members.get(MAIN, ()) for scope in scopes.get(node.key, ())}
    for node in graph.nodes:
        owner = graph.body_owner.get(node.graph)
        if owner not in scopes:
            continue
        around, own = scopes[owner][0], scopes.get(node.key, ((),))
        is_apart = all(scope[:1] not in outermost and scope[:1] != around[:1] for scope in own)
        if is_apart or node.key not in scopes:
            scopes[node.key] = tuple((*around, *scope) for scope in own)
            if not _are_believed(scopes[node.key]):
                del scopes[node.key]
    return scopes


def _are_believed(scopes: Iterable[_Scope]) -> bool:
    return all(len(scope) <= MOST_LEVELS for scope in scopes)


def _scopes_of(node: Node, inlined: InlinedNames) -> Iterator[_Scope]:
    for name in _names_of(node):
        module, inside = inlined.split(name)
        # A name that is inlined or TorchScript's begins with a slash, and so with an empty part.
        yield tuple(filter(None, (module, *_FUSION.sub("", inside).split("/")[:-1])))


@dataclass(frozen=True)
class TorchScriptPaths:
    """The module path of every scope in a graph that TorchScript's exporter named.

    A module that is not called but whose `forward` is run leaves no part, so that one scope may stand for several
    modules (`/encoder/attention` for encoder.layers.0.attention and encoder.layers.1.attention). Parameters show it.
    """

    graph: Graph
    scopes: Mapping[str, tuple[_Scope, ...]]
    uses: ParameterUses

    @cached_property
    def paths(self) -> Mapping[_Scope, str | None]:
        """None for a scope that stands for several modules."""
        paths: dict[_Scope, str | None] = {(): ROOT}
        # Outer scopes first, because a path grows from that of the scope around; first calls before later ones.
        for scope in sorted(self._all_scopes - {()}, key=lambda scope: (len(scope), len(scope[-1]), scope)):
            shown = self._shown_paths.get(scope, ())
            paths[scope] = next(iter(shown)) if len(shown) == 1 else None if shown else self._extend(scope, paths)
        return paths

    @cached_property
    def _all_scopes(self) -> frozenset[_Scope]:
        used = {scope for several in self.scopes.values() for scope in several}
        return frozenset(scope[:depth] for scope in used for depth in range(len(scope) + 1))

    @cached_property
    def _shown_paths(self) -> Mapping[_Scope, frozenset[str]]:
        """By scope: the modules that it stands for by the parameters that are read in it, or in scopes inside."""
        shown: dict[_Scope, set[str]] = {}
        for node in self.graph.nodes:
            for scope in self.scopes.get(node.key, ()) if node.key in self.uses.readers else ():
                for path in self.uses.readers[node.key]:
                    # A module may compute with a parameter of the module around it.
                    outer = (scope[:depth] for depth in range(len(scope), 0, -1))
                    shown.setdefault(next((each for each in outer if _fits(each, path)), ()), set()).add(path)
        for scope in sorted(self._all_scopes, key=len, reverse=True):
            if len(scope) > 1 and shown.get(scope):
                around = (path for inner in shown[scope] for path in lineage_of(parent_path(inner)) if path)
                shown.setdefault(scope[:-1], set()).update(path for path in around if _fits(scope[:-1], path))
        return {scope: frozenset(paths) for scope, paths in shown.items() if paths and scope}

    def _extend(self, scope: _Scope, paths: Mapping[_Scope, str | None]) -> str | None:
        """The path of a scope that no parameter is read in, from that of the scope around it."""
        above, part = paths[scope[:-1]], scope[-1]
        if above is None:
            return None
        first_call = (*scope[:-1], _unnumbered(part))
        if first_call != scope and first_call in paths and self._read_same_weights(scope, first_call):
            return paths[first_call]
        if above and part.startswith(f"{part_of(above)}."):
            return above + part.removeprefix(part_of(above))
        return join(above, part)

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


def _unnumbered(part: str) -> str:
    numbered = _NUMBERED.fullmatch(part)
    return numbered[1] if numbered else part


def _fits(scope: _Scope, path: str) -> bool:
    """Whether a scope can stand for a module: its parts, of later calls too, are those of modules around it, in order.

    A weight that was stored once for several modules bears the name of another one, whose path does not fit.
    """
    parts = iter([part_of(above) for above in lineage_of(path) if above])
    if not all(any(part in (own, _unnumbered(own)) for part in parts) for own in scope):
        return False
    return part_of(path) in (scope[-1], _unnumbered(scope[-1]))
