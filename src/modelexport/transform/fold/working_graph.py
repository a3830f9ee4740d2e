"""Working graph: the main graph while regions of it are contracted to calls.

    a ─► b ─► c ─► d      contract({b, c})      a ─► call ─► d

Items are nodes and calls. They are kept in an order in which they can run. A contraction only moves what lies between
the first and the last item of a region, so that folding costs about as much as the regions are long.

`FoldNode` is a node as folding sees it: what it reads and makes, and a number that is equal for nodes that do the same.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import onnx

from modelexport.graph.algorithms import topological_order
from modelexport.graph.protos import captured, has_bodies, in_order, plain_bodies
from modelexport.record.hierarchy import ModuleCall

# A node whose bodies hold more than this is not folded: the names in its bodies are kept for every call of it.
_LARGEST_BODIES = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class FoldNode:
    """One node of the main graph.

    position  its number in the file, which need not list nodes in an order in which they run
    reads     what it reads slot by slot, `""` for a slot that is left out; then what its bodies read
    makes     what it makes slot by slot
    kind      the same for nodes that do the same; all Constants are of one kind
    content   the same for Constants that hold the same; 0 for other nodes
    large     it has bodies that are too large to be kept for every call
    """

    proto: onnx.NodeProto
    position: int
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    kind: int
    content: int
    large: bool

    @property
    def is_source(self) -> bool:
        return not any(self.reads)


def list_fold_nodes(nodes: Sequence[onnx.NodeProto]) -> list[FoldNode]:
    """In an order in which they can run."""
    listed = list(nodes)
    positions = {id(node): index for index, node in enumerate(listed)}  # protos have no hash
    kinds: dict[bytes, int] = {}
    return [_fold_node(node, positions[id(node)], kinds) for node in in_order(listed)]


def _fold_node(node: onnx.NodeProto, index: int, kinds: dict[bytes, int]) -> FoldNode:
    bodies = has_bodies(node)
    reads = (*node.input, *captured(node)) if bodies else tuple(node.input)
    plain = _strip_node(node, bodies=bodies)
    content = 0
    if node.op_type == "Constant" and not reads and len(node.output) == 1:
        tensor = constant_tensor(plain)
        if tensor is not None:
            tensor.ClearField("name")
        content = kinds.setdefault(plain.SerializeToString(deterministic=True), len(kinds) + 1)
        plain.ClearField("attribute")
    kind = kinds.setdefault(plain.SerializeToString(deterministic=True), len(kinds) + 1)
    large = bodies and node.ByteSize() > _LARGEST_BODIES
    return FoldNode(node, index, reads, tuple(node.output), kind, content, large)


def constant_tensor(node: onnx.NodeProto) -> onnx.TensorProto | None:
    """What a Constant holds; its name says nothing."""
    if node.op_type != "Constant" or len(node.attribute) != 1 or node.attribute[0].type != onnx.AttributeProto.TENSOR:
        return None
    return node.attribute[0].t


def _strip_node(node: onnx.NodeProto, *, bodies: bool) -> onnx.NodeProto:
    """What a node does, without what it is called and what it does it to."""
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    if bodies:
        plain_bodies(plain)
    for field in ("name", "doc_string", "metadata_props", "input", "output"):
        plain.ClearField(field)
    return plain


_NOT_IN_IDENTIFIERS = re.compile(r"[^A-Za-z0-9_]+")


class FreeNames:
    """Names that nobody has yet. Numbers are remembered: a graph can have thousands of nodes called `MatMul`."""

    def __init__(self, used: Iterable[str] = ()) -> None:
        self._used = set(used)
        self._numbers: dict[str, int] = {}

    def free(self, name: str) -> str:
        """The name, with a number behind it if it is in use."""
        free, number = name, self._numbers.get(name, 1)
        while free in self._used:
            number += 1
            free = f"{name}_{number}"
        self._numbers[name] = number
        self._used.add(free)
        return free


def function_identifier(class_name: str) -> str:
    """A class name as ONNX allows it for a function: a hostile one could be anything."""
    name = _NOT_IN_IDENTIFIERS.sub("_", class_name).strip("_") or "Module"
    return f"_{name}" if name[0].isdigit() else name


def relative_name(name: str, call: ModuleCall) -> str:
    """A name as it is inside of a module: `query.weight` for that of a weight with the path of the module before it.

    Exporters write paths with dots, or as a scope: `/encoder/layer.0/attention/MatMul`.
    """
    # In a scope, a number stays with the list that it is an index of: `layer.0` is one step.
    scope = "".join(f"/{step}" for step in re.sub(r"\.(?=\d+(\.|$))", "\0", call.path).split(".")).replace("\0", ".")
    for prefix in (f"{call.path}.", f"{scope}/"):
        at = name.find(prefix)
        if call.path and (at == 0 or (at > 0 and name[at - 1] in "./ ")) and len(name) > at + len(prefix):
            return name[at + len(prefix) :]
    return name


class WorkingGraph:
    """
    reads   by item: the values that it reads
    first   by item: where the file has the first of its nodes
    weight  by item: how many nodes it stands for
    _above  by item: the item that it was contracted into, or itself (a union-find forest)
    _slots  items in an order in which they can run; -1 for a slot that a contraction has left empty
    """

    def __init__(self, fold_nodes: Sequence[FoldNode], kept: Iterable[str]) -> None:
        """`kept`: values that are wanted whoever reads them, as the outputs of the graph."""
        self.fold_nodes = fold_nodes
        self._kept = frozenset(kept)
        self._maker = {name: number for number, fold_node in enumerate(fold_nodes) for name in fold_node.makes if name}
        self._readers: dict[str, list[int]] = {}
        for number, fold_node in enumerate(fold_nodes):
            for name in dict.fromkeys(filter(None, fold_node.reads)):
                self._readers.setdefault(name, []).append(number)
        self._above = list(range(len(fold_nodes)))
        self.reads: list[tuple[str, ...]] = [tuple(filter(None, fold_node.reads)) for fold_node in fold_nodes]
        self.first = [fold_node.position for fold_node in fold_nodes]
        self.weight = [1] * len(fold_nodes)
        self._slots: list[int] = self._initial_order()
        # Nodes of a cycle that leads nowhere are in no slot.
        self._slot_of = dict.fromkeys(range(len(fold_nodes)), 0) | {item: at for at, item in enumerate(self._slots)}

    def _initial_order(self) -> list[int]:
        """Each node right before what first needs it, wherever the file lists it: so modules are close together."""
        makers: list[list[int]] = []
        depths: list[int] = []
        for node in self.fold_nodes:
            makers.append(list(dict.fromkeys(self._maker[name] for name in node.reads if name in self._maker)))
            # A graph with a cycle is not valid, but must not stop the program.
            depths.append(1 + max((depths[maker] for maker in makers[-1] if maker < len(depths)), default=0))
        order: dict[int, None] = {}
        seen: set[int] = set()
        ends = [number for number, node in enumerate(self.fold_nodes) if not any(map(self._readers.get, node.makes))]
        waiting = ends[::-1]
        while waiting:
            number = waiting[-1]
            missing = [] if number in seen else [maker for maker in makers[number] if maker not in seen]
            seen.add(number)
            if missing:  # what takes longest to make comes first, and what is soon made stays close to its reader
                missing.sort(key=depths.__getitem__, reverse=True)
                waiting += reversed(missing)
            else:
                order.setdefault(waiting.pop())
        return list(order)

    def find_item(self, item: int) -> int:
        """The item that an item is part of by now."""
        root = item
        while self._above[root] != root:
            root = self._above[root]
        while self._above[item] != root:  # path compression: each step is walked about once
            self._above[item], item = root, self._above[item]
        return root

    def maker(self, name: str) -> int | None:
        return self.find_item(self._maker[name]) if name in self._maker else None

    def before(self, item: int) -> set[int]:
        return {maker for maker in map(self.maker, self.reads[item]) if maker is not None}

    def is_read_outside(self, name: str, members: Collection[int]) -> bool:
        readers = self._readers.get(name, ())
        return name in self._kept or any(self.find_item(reader) not in members for reader in readers)

    def is_source(self, item: int) -> bool:
        return item < len(self.fold_nodes) and self.fold_nodes[item].is_source

    def window(self, members: Iterable[int]) -> list[int]:
        slots = [self._slot_of[item] for item in members]
        return [item for item in self._slots[min(slots) : max(slots) + 1] if item >= 0]

    def contract(self, members: Sequence[int], reads: tuple[str, ...]) -> int:
        """Make a convex region one item; returns its number."""
        window = self.window(members)
        inside = set(members)
        needed = set(members)
        for item in reversed(window):
            if item in needed:
                needed |= self.before(item)
        call = len(self._above)
        earlier = [item for item in window if item in needed and item not in inside]
        later = [item for item in window if item not in needed]
        start, end = self._slot_of[window[0]], self._slot_of[window[-1]] + 1
        self._above.append(call)
        for item in members:
            self._above[item] = call
        self.reads.append(reads)
        self.first.append(min(self.first[item] for item in members))
        self.weight.append(sum(self.weight[item] for item in members))
        moved = [*earlier, call, *later]
        self._slot_of.update({item: slot for slot, item in enumerate(moved, start)})
        # Slots stay empty rather than being removed: all that comes later would have to be numbered anew.
        self._slots[start:end] = [*moved, *[-1] * (end - start - len(moved))]
        return call

    def in_file_order(self, items: Iterable[int]) -> list[int]:
        """Some items, each after those of them that it reads from, and otherwise as the file lists them."""
        needs = {item: self.before(item) for item in sorted(set(items))}
        return list(topological_order(needs, self.first.__getitem__))

    def items(self) -> list[int]:
        """All items that there are by now, in an order in which they can run."""
        return self.in_file_order(item for item in self._slots if item >= 0)
