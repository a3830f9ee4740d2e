"""Piecewise run: an ONNX graph run in ONNX Runtime with all of its values seen as they are made.

The graph is cut into pieces of successive nodes. Each is a model of its own that is given what it reads and returns
what is wanted of it and what later pieces need. What no later node reads is dropped before the next piece starts:
memory is bounded by the values that are alive and what one piece makes.

    x ──► MatMul ──► a ──► Add ──► b ──► Relu ──► y        pieces  [MatMul, Add]  feeds x, W, bias   returns a, b
                                                                   [Relu]         feeds b            returns y

(A session that returns every value at once would hold all of them, and the file's weights a second time.)

Weights are fed like inputs, from where they lie, so that no piece has a copy of its own. Nothing is optimized: a graph
runs as it is, node by node. One that ONNX Runtime has optimized before is run just so; values in its NCHWc layout are
seen in the usual one (graph/nchwc.py), and how long a block is on this machine is asked of ONNX Runtime here.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx.parser

from modelexport.errors import ExtraMissing, RuntimeFailed
from modelexport.graph.file.mapped_memory import give_back_heap, room_for_weights, stay_within_limit
from modelexport.graph.file.reading import (
    ModelFile,
    initializer_array,
    is_data_outside,
    is_numpy_type,
    tensor_with_data,
)
from modelexport.graph.index import called_id, function_id
from modelexport.graph.missing_types import USE_FLOAT32, explain_missing_type
from modelexport.graph.nchwc import blocked_values, in_usual_order
from modelexport.graph.protos import NCHWC, in_order, names_read, subgraphs
from modelexport.graph.types import value_sizes


class PiecePlanner:
    """How many nodes a piece may have, so that what it makes takes no more than a given room.

    What is unknown of a value's size is learnt from the pieces before: it is taken to be as large as any so far.
    Pieces of unknown sizes grow from `first` by doubling, so that a wrong guess costs one small piece.
    """

    def __init__(
        self,
        wanted: Sequence[Sequence[str]],
        sizes: Mapping[str, int],
        *,
        room: int,
        first: int,
        longest: int,
        weights: Sequence[int] = (),
    ) -> None:
        """How the nodes of a graph are cut.

        wanted   the values of each node that are kept
        sizes    the bytes of those that are known
        weights  the bytes that each node reads of the file, where they count as well
        first    nodes in the first piece if some are not; each that follows may have twice as many
        longest  nodes in any piece
        """
        stored = weights or [0] * len(wanted)
        self._known = [
            sum(sizes.get(name, 0) for name in names) + read for names, read in zip(wanted, stored, strict=True)
        ]
        self._unknown = [sum(name not in sizes for name in names) for names in wanted]
        self._largest = max(sizes.values(), default=0)
        self._room = room
        self._longest = longest
        self._length = min(first, longest) if any(self._unknown) else longest

    def end(self, start: int) -> int:
        """Where a piece that begins at `start` ends; it has one node at least."""
        last = min(start + self._length, len(self._known))
        room = self._room - self._expected(start)
        for end in range(start + 1, last):
            room -= self._expected(end)
            if room < 0:
                return end
        return last

    def ran(self, largest: int) -> None:
        """A piece was run whose largest value has so many bytes."""
        self._largest = max(self._largest, largest)
        self._length = min(2 * self._length, self._longest)

    def failed(self, length: int) -> None:
        """A piece of so many nodes could not be run; what comes before the node that fails is worth having."""
        self._length = length // 2

    def _expected(self, index: int) -> int:
        return self._known[index] + self._unknown[index] * self._largest


# 64 channels: a multiple of every block that there is.
_REORDERING = f"""<ir_version: 8, opset_import: ["": 13, "{NCHWC}": 1]>
g (float[1, 64, 1, 2] x) => (float[1, 64, 1, 2] y) {{ y = {NCHWC}.ReorderInput(x) }}"""


@cache
def _block_size() -> int:
    """How many channels are in a block: it depends on the processor, and only ONNX Runtime knows."""
    model = onnx.parser.parse_model(_REORDERING).SerializeToString()
    session = _runtime().InferenceSession(model, providers=["CPUExecutionProvider"])
    pixels = np.array([0, 1] * 64, np.float32).reshape(1, 64, 1, 2)
    # The second pixel follows when the first one's channels of a block are through.
    return int(session.run(None, {"x": pixels})[0].argmax())


ValueVisitor = Callable[[str, np.ndarray], object]
# By name: what a node can read, as far as numpy has a type for it.
Scope = Callable[[str], "np.ndarray | None"]
# Is handed what a piece made, by name, and whether it was the last one. It may name one of these values: what comes
# behind its node is run anew, with an array in the place of the value, or with the node itself, if there is none.
PieceReviser = Callable[[Mapping[str, np.ndarray], bool], "tuple[str, np.ndarray | None] | None"]
# Is handed a node that holds bodies or calls a function, once it has been run, with what it could read.
BodyVisitor = Callable[[onnx.NodeProto, Scope], None]

_FIRST_PIECE, _LONGEST_PIECE = 32, 1024
# Bytes that a piece may make.
_ROOM = 1 << 26
# Bytes of values that may have passed before memory goes back to the system; it is slow to come again.
_GIVE_BACK_AFTER = 1 << 28
# Every session has threads of its own, so those of a graph in very many pieces are made again instead of kept.
_MOST_SESSIONS = 64
# Data up to this size goes into the piece: shapes and scalars decide what ONNX Runtime can know in advance.
_SMALL = 1024
_SILENT = 4  # fatal errors only
_MOST_AXES = 8  # a longer vector of integers is data, not the shape of a tensor
_LONGEST_REASON = 300  # characters: the first line of an error may hold a whole graph
_SEQUENCE = re.compile(r"seq\(tensor\((\w+)\)\)")


@dataclass(frozen=True, eq=False)
class _Piece:
    """A run of successive nodes, ready to be run. `weights` are the values that it reads from the file."""

    end: int
    session: Any
    fed: tuple[str, ...]
    weights: Mapping[str, Any]
    outputs: tuple[str, ...]

    def run(self, alive: Mapping[str, Any]) -> dict[str, Any]:
        feed = {name: alive[name] if name in alive else self.weights[name] for name in self.fed}
        values = self.session.run_with_ort_values(list(self.outputs), feed)
        return dict(zip(self.outputs, values, strict=True))


class PiecewiseRun:
    """One file, to be run on any number of feeds.

    wanted    names of the values to be seen; all of the main graph's if None
    often     sessions are made in the first run and kept for the others; for a single one they are dropped, and with
              them the memory of weights that could not be read where they lie
    building  seconds that went into cutting the graph and making sessions so far: start-up, and no part of a run
    """

    def __init__(self, file: ModelFile, wanted: Collection[str] | None = None, *, often: bool = True) -> None:
        self._file = file
        self._most_sessions = _MOST_SESSIONS if often and room_for_weights() is None else 0
        self._wanted = None if wanted is None else frozenset(wanted)
        self._nodes = list(in_order(file.proto.graph.node))
        self._reads = [names_read(node) for node in self._nodes]
        self._blocked = blocked_values(self._nodes)
        self._last_use = {name: index for index, names in enumerate(self._reads) for name in names}
        self._initializers = {tensor.name: tensor for tensor in file.proto.graph.initializer}
        self._functions = frozenset(map(function_id, file.proto.functions))
        self._pieces: dict[int, _Piece] = {}  # by the index of their first node
        self._fed: dict[str, np.dtype[Any]] = {}
        self._planner = PiecePlanner([], {}, room=0, first=0, longest=0)
        self.building = 0.0

    def run(
        self,
        feed: Mapping[str, np.ndarray],
        see: ValueVisitor,
        visit_bodies: BodyVisitor | None = None,
        revise: PieceReviser | None = None,
    ) -> None:
        """Hand every wanted value to `see`: what is fed first, then in the order in which nodes are listed.

        An array may lie in ONNX Runtime's memory, and is valid only until `see` returns. Values that numpy has no type
        for are not seen. Raises RuntimeFailed; what lies before the node that fails has then been seen.

        revise  may exchange values, if all are wanted
        """
        alive = self._begin(feed)
        for name, array in feed.items():
            see(name, array)
        start = passed = 0
        while start < len(self._nodes):
            end = self._pieces[start].end if start in self._pieces else self._planner.end(start)
            try:
                values = self._run_piece(start, end, alive)
            except RuntimeFailed:
                if end - start == 1:
                    raise
                self._planner.failed(end - start)
                continue
            if revise is not None:
                end, values = self._revise(start, end, values, revise)
            sizes = [self._show(name, value, see) for name, value in values.items()]
            if visit_bodies is not None:
                self._visit_bodies(self._nodes[start:end], {**alive, **values}, visit_bodies)
            self._planner.ran(max(sizes, default=0))
            passed += sum(sizes)
            alive = {name: value for name, value in {**alive, **values}.items() if self._last_use.get(name, -1) >= end}
            values.clear()  # what is not alive is freed before the next piece takes memory
            if passed > _GIVE_BACK_AFTER:
                passed = 0
                give_back_heap()
            stay_within_limit()
            start = end

    def _revise(self, start: int, end: int, values: dict[str, Any], revise: PieceReviser) -> tuple[int, dict[str, Any]]:
        """Where a piece ends that was looked at, and what it made."""
        seen = {name: array for name, value in values.items() if (array := _array(value)) is not None}
        revision = revise(seen, end == len(self._nodes))
        if revision is None:
            return end, values
        name, array = revision
        maker = next(index for index in range(start, end) if name in self._nodes[index].output)
        # A piece has one node at least.
        last = max(maker, start + 1) if array is None else maker + 1
        kept = {name: values[name] for node in self._nodes[start:last] for name in node.output if name in values}
        if array is not None:
            kept[name] = _runtime().OrtValue.ortvalue_from_numpy(np.require(array, requirements=["C", "A"]))
        return last, kept

    def _visit_bodies(self, nodes: Iterable[onnx.NodeProto], values: Mapping[str, Any], visit: BodyVisitor) -> None:
        def find(name: str) -> np.ndarray | None:
            if name in values:
                return _array(values[name])
            stored = self._initializers.get(name)
            return None if stored is None else initializer_array(self._file, stored)

        for node in nodes:
            if any(subgraphs(node)) or called_id(node) in self._functions:
                visit(node, find)

    def _begin(self, feed: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """What is fed, as ONNX Runtime's values. Sessions that were made for other inputs are of no use."""
        arrays = {name: np.require(array, requirements=["C", "A"]) for name, array in feed.items()}
        fed = {name: array.dtype for name, array in arrays.items()}
        if fed != self._fed:
            self._pieces.clear()
            self._fed = fed
            began = time.perf_counter()
            wanted = [[name for name in node.output if self._is_wanted(name)] for node in self._nodes]
            sizes = value_sizes(self._file.proto, feed)
            spare = room_for_weights()
            weights = [] if spare is None else [self._weigh(names) for names in self._reads]
            self._planner = PiecePlanner(
                wanted,
                sizes,
                room=_ROOM if spare is None else spare,
                first=_FIRST_PIECE,
                longest=_LONGEST_PIECE,
                weights=weights,
            )
            self.building += time.perf_counter() - began
        return {name: _runtime().OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}

    def _is_wanted(self, name: str) -> bool:
        return bool(name) and (self._wanted is None or name in self._wanted)

    def _run_piece(self, start: int, end: int, alive: Mapping[str, Any]) -> dict[str, Any]:
        """Run the nodes from `start` to `end`: what they return. A piece that fails is not kept: it is cut again."""
        piece = self._pieces.get(start) or self._build(start, end, alive)
        if not piece.outputs:
            return {}
        try:
            values = piece.run(alive)
        except Exception as error:
            self._pieces.pop(start, None)
            raise _runtime_failure(error, self._file.proto) from error
        if len(self._pieces) < self._most_sessions:
            self._pieces[start] = piece
        return values

    def _build(self, start: int, end: int, alive: Mapping[str, Any]) -> _Piece:
        began = time.perf_counter()
        read = dict.fromkeys(name for names in self._reads[start:end] for name in names)
        computed = [name for node in self._nodes[start:end] for name in node.output if name]
        outputs = [name for name in computed if self._is_wanted(name) or self._last_use.get(name, -1) >= end]
        weights = {name: self._weight(name) for name in read if name not in alive and self._is_weight(name)}
        proto = self._piece(start, end, read)
        try:
            inputs = {name: alive[name] for name in read if name in alive and name not in computed}
            fed = {**inputs, **weights}
            proto.graph.input.extend(_value_info(name, value) for name, value in fed.items())
            proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
            session = _session(proto) if outputs else None
        except Exception as error:
            raise _runtime_failure(error, proto) from error
        self.building += time.perf_counter() - began
        return _Piece(end, session, tuple(fed), weights, tuple(outputs))

    def _piece(self, start: int, end: int, read: Collection[str]) -> onnx.ModelProto:
        small = [self._initializers[name] for name in read if name in self._initializers and not self._is_weight(name)]
        stored = [tensor_with_data(self._file, tensor) for tensor in small]
        file = self._file.proto
        sparse = [tensor for tensor in file.graph.sparse_initializer if tensor.values.name in read]
        graph = onnx.GraphProto(
            name="piece", node=self._nodes[start:end], initializer=stored, sparse_initializer=sparse
        )
        return onnx.ModelProto(
            ir_version=file.ir_version, opset_import=file.opset_import, functions=file.functions, graph=graph
        )

    def _weigh(self, names: Iterable[str]) -> int:
        return sum(self._file.weights[name].nbytes for name in names if self._is_weight(name))

    def _is_weight(self, name: str) -> bool:
        """Whether it is an initializer that is handed over as a value, instead of as a part of the piece."""
        tensor = self._initializers.get(name)
        if tensor is None or not is_data_outside(self._file, tensor) or not is_numpy_type(tensor):
            return False
        return self._file.weights[name].nbytes > _SMALL

    def _weight(self, name: str) -> Any:
        # What lies in the file at an odd place is copied.
        array = np.require(initializer_array(self._file, self._initializers[name]), requirements=["C", "A"])
        return _runtime().OrtValue.ortvalue_from_numpy(array)

    def _show(self, name: str, value: Any, see: ValueVisitor) -> int:
        """Let a value be seen; its size in bytes."""
        array = _array(value) if self._is_wanted(name) else None
        if array is None:
            return 0
        see(name, in_usual_order(array, _block_size()) if name in self._blocked else array)
        return int(array.nbytes)


def _session(proto: onnx.ModelProto) -> Any:
    runtime = _runtime()
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _SILENT
    # An arena never gives memory back; threads that wait for work by spinning take it from the next session's.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise ExtraMissing.of_runtime(error) from error
    return onnxruntime


def _runtime_failure(error: Exception, proto: onnx.ModelProto) -> RuntimeFailed:
    if missing := explain_missing_type(error, proto):
        return RuntimeFailed(missing, USE_FLOAT32)
    first_line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return RuntimeFailed(
        f"ONNX Runtime cannot run the graph: {type(error).__name__}: {first_line[:_LONGEST_REASON]}",
        "Try a newer onnxruntime or another opset; if it is the inputs that do not fit, --input NAME=SHAPE:DTYPE.",
    )


def _array(value: Any) -> np.ndarray | None:
    if not value.is_tensor():
        return None
    try:
        array: np.ndarray = value.numpy()
    except RuntimeError:
        return None
    return array


def _value_info(name: str, value: Any) -> onnx.ValueInfoProto:
    if value.is_tensor():
        shape = list(value.shape())
        # Of what is a shape by its looks, one number for each axis: some operators must know how many axes there are.
        is_shape = value.element_type() == onnx.TensorProto.INT64 and len(shape) == 1 and shape[0] <= _MOST_AXES
        return onnx.helper.make_tensor_value_info(name, value.element_type(), shape if is_shape else None)
    sequence = _SEQUENCE.fullmatch(value.data_type())
    if sequence:
        element = onnx.TensorProto.DataType.Value(sequence[1].upper())
        return onnx.helper.make_tensor_sequence_value_info(name, element, None)
    raise TypeError(f"{name} is a {value.data_type()}, which cannot be handed from node to node")
