"""Inlining: names of graphs that were inlined into another one, or into a body of it.

An inliner puts the name of the call before every name:

    If_0_then_branch__Inline_0__/stft/Conv               a node       -> /stft/Conv
    If_0_then_branch__Inline_0__encoder.0.weight         a weight     -> encoder.0.weight

Where two inlined graphs have the same scopes (one network for each rate of sampling, say), they are two networks, and
the calls tell them apart: `If_0_then_branch__Inline_0.stft`, `If_0_else_branch__Inline_0.stft`.
https://onnx.ai/onnx/api/inliner.html
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.graph.index import KEY_SEPARATOR, Graph

_PREFIX = re.compile(r"[^/]*(__|::)(?=/)")
_MARK = re.compile(r"__|::")


@dataclass(frozen=True)
class InlinedNames:
    """The prefixes that names of a graph have."""

    graph: Graph

    def split(self, name: str) -> tuple[str, str]:
        """The module that an inlined graph is, empty if there are no two like it, and the name inside of it."""
        match = _PREFIX.match(name)
        prefix = match[0] if match else self._prefix_of_weight(name)
        return self._modules.get(prefix, ""), name[len(prefix) :]

    def _prefix_of_weight(self, name: str) -> str:
        # By length first: a name may be a million underscores.
        ends = (match.end() for match in _MARK.finditer(name) if match.end() in self._lengths)
        return max((name[:end] for end in ends if name[:end] in self._modules), key=len, default="")

    @cached_property
    def _lengths(self) -> frozenset[int]:
        return frozenset(map(len, self._modules))

    @cached_property
    def _modules(self) -> Mapping[str, str]:
        networks: dict[str, str] = {}
        scopes: set[tuple[str, str]] = set()
        for name in self._names():
            if match := _PREFIX.match(name):
                networks[match[0]] = _name_network(match[0])
                scopes.add((name[match.end() :].rpartition("/")[0], networks[match[0]]))
        times = Counter(scope for scope, _ in scopes if scope)
        are_alike = any(count > 1 for count in times.values())
        return {prefix: network if are_alike else "" for prefix, network in networks.items()}

    def _names(self) -> Iterable[str]:
        for node in self.graph.nodes:
            yield node.name
            yield from (output.rpartition(KEY_SEPARATOR)[2] for output in node.outputs[:1])


def _name_network(prefix: str) -> str:
    """Of `F2::If_0_then_branch__Inline_0__`, the name of the call, without that of the graph that it was moved to."""
    return prefix.rstrip("_:").rpartition("::")[2].replace(".", "_")
