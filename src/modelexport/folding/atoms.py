"""The nodes of a main graph as folding sees them: what they read and make, and which of them do the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from modelexport.folding.bodies import has_bodies, plain_bodies
from modelexport.graph.bodies import captured
from modelexport.graph.order import in_order

# A node whose bodies hold more than this is not folded: the names in its bodies are kept for every call of it.
_LARGEST_BODIES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class Atom:
    """One node of the main graph.

    place    its number in the file
    reads    what it reads slot by slot, `""` for a slot that is left out; then what its bodies read
    makes    what it makes slot by slot
    kind     the same for nodes that do the same; all Constants are of one kind
    content  the same for Constants that hold the same; 0 for other nodes
    large    it has bodies that are too large to be kept for every call
    """

    proto: onnx.NodeProto
    place: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    kind: int
    content: int
    large: bool

    @property
    def is_source(self) -> bool:
        return not any(self.reads)


def atoms_of(nodes: Sequence[onnx.NodeProto]) -> list[Atom]:
    """In an order in which they can run."""
    listed = list(nodes)
    places = {id(node): place for place, node in enumerate(listed)}
    kinds: dict[bytes, int] = {}
    return [_atom(node, places[id(node)], kinds) for node in in_order(listed)]


def _atom(node: onnx.NodeProto, place: int, kinds: dict[bytes, int]) -> Atom:
    bodies = has_bodies(node)
    reads = (*node.input, *captured(node)) if bodies else tuple(node.input)
    plain = _plain(node, bodies=bodies)
    content = 0
    if node.op_type == "Constant" and not reads and len(node.output) == 1:
        tensor = tensor_of(plain)
        if tensor is not None:
            tensor.ClearField("name")
        content = kinds.setdefault(plain.SerializeToString(deterministic=True), len(kinds) + 1)
        plain.ClearField("attribute")
    kind = kinds.setdefault(plain.SerializeToString(deterministic=True), len(kinds) + 1)
    large = bodies and node.ByteSize() > _LARGEST_BODIES
    return Atom(node, place, reads, tuple(node.output), kind, content, large)


def tensor_of(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """What a Constant holds; its name says nothing."""
    if node.op_type != "Constant" or len(node.attribute) != 1 or node.attribute[0].type != onnx.AttributeProto.TENSOR:
        return None
    return node.attribute[0].t


def _plain(node: onnx.NodeProto, *, bodies: bool) -> onnx.NodeProto:
    """What a node does, without what it is called and what it does it to."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    if bodies:
        plain_bodies(plain)
    for field in ("name", "doc_string", "metadata_props", "input", "output"):
        plain.ClearField(field)
    return plain
