"""Which nodes make and which read each value of a graph. It comes from the graph and is never stored in a record."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Edges:
    """Values by their ids: names in the main graph, behind the id of the graph in bodies and functions.

    producers     the key of the node that makes a value; for what a body or a function is given, the nodes that run it
    consumers     all nodes that read a value, in file order; what a body returns is read by the node that runs it
    inputs        of the model
    outputs       of the model
    initializers  values that are stored in the file, with the number of their elements
    domains       of the operators that are not ONNX's own, by node key
    """

    producers: Mapping[str, tuple[str, ...]]
    consumers: Mapping[str, tuple[str, ...]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, int]
    domains: Mapping[str, str]

    @cached_property
    def values(self) -> tuple[str, ...]:
        """Every value once."""
        return tuple(dict.fromkeys(value for group in self._groups for value in group))

    def __contains__(self, value: str) -> bool:
        return any(value in group for group in self._groups)

    @property
    def _groups(self) -> tuple[Collection[str], ...]:
        return self.inputs, self.initializers, self.producers, self.consumers, self.outputs

    def around(self, value: str) -> tuple[str, ...]:
        """The nodes that make or read a value."""
        return (*self.producers.get(value, ()), *self.consumers.get(value, ()))
