"""The outline of a graph: what it takes to recognize it in a graph that a tool made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.sketch import Sketch


@dataclass(frozen=True, slots=True)
class OutlineNode:
    """One node.

    attributes  a digest of what its attributes say; empty where there are none
    constant    a digest of the tensor that it holds, if it only holds one
    graph       the id of the body or function that it is in; empty in the main graph
    """

    key: str
    op_type: str
    domain: str
    graph: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: str
    constant: str


@dataclass(frozen=True, slots=True)
class OutlineTensor:
    """An initializer: its type by ONNX's number, its shape, and a digest of its content if that lies in the graph."""

    dtype: int
    shape: tuple[int, ...]
    content: str


@dataclass(frozen=True)
class Body:
    """A graph inside a node, or a function. `owner` is the key of the node that holds it, if one does."""

    owner: str
    takes: tuple[str, ...]
    yields: tuple[str, ...]


@dataclass(frozen=True)
class Outline:
    """A graph, in file order. `sketches` are those of its constants."""

    nodes: tuple[OutlineNode, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, OutlineTensor]
    bodies: Mapping[str, Body] = field(default_factory=dict)
    sketches: Mapping[str, Sketch] = field(default_factory=dict)
