"""Running an ONNX graph once with every value seen, and a fingerprint of each kept.

The graph is cut into runs of successive nodes. Each is a model of its own that is given what it reads (weights
included, so that they are in memory once) and returns everything that it makes. What no later node reads is dropped
before the next one starts: memory is bounded by the values that are alive and one run's worth of intermediates.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper

from modelexport.capture.failure import reason
from modelexport.graph.external import is_external
from modelexport.graph.fingerprint import fingerprint
from modelexport.graph.index import bodies
from modelexport.graph.opened import ModelFile
from modelexport.record.signals import Fingerprint, GraphValues

_FIRST_RUN, _LONGEST_RUN = 32, 256
# A run of nodes that makes more than this is followed by a shorter one.
_BUDGET = 1 << 27
_SILENT = 4
_LONGEST_REASON = 300
# `dtype.isbuiltin` of the types that numpy itself has; others (bfloat16) were added to it.
_NUMPYS_OWN = 1
_SEQUENCE = re.compile(r"seq\(tensor\((\w+)\)\)")


def graph_values(file: ModelFile, inputs: Mapping[str, np.ndarray]) -> GraphValues:
    """Fingerprints of all values of the main graph; those before the failure if ONNX Runtime cannot run all of it."""
    run = _Run(file)
    failure = ""
    try:
        run.feed(inputs)
        run.nodes()
    except Exception as error:  # noqa: BLE001 - onnxruntime has no common error class; what it says is the finding
        failure = f"ONNX Runtime cannot run the graph: {reason(error, 1)[:_LONGEST_REASON]}"
    return GraphValues(run.prints, failure)


def weights_only(file: ModelFile, failure: str) -> GraphValues:
    """Fingerprints of the initializers, for a graph that cannot be run."""
    return GraphValues(_Run(file).prints, failure)


class _Run:
    """One pass over the nodes. `_alive` holds what later nodes read, as ONNX Runtime's own values."""

    def __init__(self, file: ModelFile) -> None:
        self._proto = file.proto
        self._nodes = list(file.proto.graph.node)
        self._reads = [_names_read(node) for node in self._nodes]
        self._last_use = {name: place for place, names in enumerate(self._reads) for name in names}
        self._constants: dict[str, onnx.TensorProto] = {}
        self._weights: dict[str, np.ndarray] = {}
        self._alive: dict[str, Any] = {}
        self.prints: dict[str, Fingerprint] = {}
        for tensor in file.proto.graph.initializer:
            self._add_weight(file, tensor)

    def _add_weight(self, file: ModelFile, tensor: onnx.TensorProto) -> None:
        """Small weights lie in the graph, and stay; the others are fed like inputs, from where they are."""
        whole = _whole(file, tensor)
        array = _outside(file, tensor) if whole is None else _inside(whole)
        if array is not None:
            self.prints[tensor.name] = fingerprint(array)
        if whole is not None:
            self._constants[tensor.name] = whole
        elif array is not None:
            self._weights[tensor.name] = array

    def feed(self, inputs: Mapping[str, np.ndarray]) -> None:
        for name, array in inputs.items():
            self.prints[name] = fingerprint(array)
            self._alive[name] = _runtime().OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array))

    def nodes(self) -> None:
        start, length = 0, _FIRST_RUN
        while start < len(self._nodes):
            end = min(start + length, len(self._nodes))
            try:
                made = self._run(start, end)
            except Exception:
                if end - start == 1:
                    raise
                length = (end - start) // 2  # what comes before the node that fails is worth having
                continue
            self._drop(end)
            length = max(1, length // 2) if made > _BUDGET else min(2 * length, _LONGEST_RUN)
            start = end

    def _run(self, start: int, end: int) -> int:
        """Run the nodes from `start` to `end`; how many bytes they made."""
        outputs = [name for node in self._nodes[start:end] for name in node.output if name]
        self._lend(start, end)
        model, fed = self._piece(start, end, outputs)
        options = _runtime().SessionOptions()
        options.graph_optimization_level = _runtime().GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = _SILENT
        session = _runtime().InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        values = session.run_with_ort_values(outputs, {name: self._alive[name] for name in fed})
        self._alive.update(zip(outputs, values, strict=True))
        return sum(self._look(name) for name in outputs)

    def _lend(self, start: int, end: int) -> None:
        """Make the weights that these nodes read into values."""
        for name in {name for names in self._reads[start:end] for name in names if name in self._weights}:
            if name not in self._alive:
                array = np.require(self._weights[name], requirements=["C", "A"])
                self._alive[name] = _runtime().OrtValue.ortvalue_from_numpy(array)

    def _piece(self, start: int, end: int, outputs: list[str]) -> tuple[onnx.ModelProto, list[str]]:
        read = dict.fromkeys(name for names in self._reads[start:end] for name in names)
        made = set(outputs)
        fed = [name for name in read if name in self._alive and name not in made]
        piece = onnx.ModelProto(ir_version=self._proto.ir_version)
        piece.opset_import.extend(self._proto.opset_import)
        piece.functions.extend(self._proto.functions)
        piece.graph.name = "piece"
        piece.graph.node.extend(self._nodes[start:end])
        piece.graph.initializer.extend(self._constants[name] for name in read if name in self._constants)
        piece.graph.input.extend(_typed(name, self._alive[name]) for name in fed)
        piece.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        return piece, fed

    def _look(self, name: str) -> int:
        """Take the fingerprint of a value that was just made; its size in bytes."""
        value = self._alive[name]
        if not value.is_tensor():
            return 0
        try:
            array = value.numpy()
        except RuntimeError:
            return 0  # a type that numpy does not have
        self.prints[name] = fingerprint(array)
        return int(array.nbytes)

    def _drop(self, end: int) -> None:
        # Weights cost nothing to lend again.
        kept = {name for name in self._alive if self._last_use.get(name, -1) >= end and name not in self._weights}
        self._alive = {name: self._alive[name] for name in kept}


def _runtime() -> Any:
    import onnxruntime

    return onnxruntime


def _names_read(node: onnx.NodeProto) -> set[str]:
    """Names that a node, or a body inside of it, reads from outside."""
    return {name for name in node.input if name} | {name for _, body in bodies(node, "") for name in _free_names(body)}


def _free_names(body: onnx.GraphProto) -> Iterator[str]:
    own = {value.name for value in body.input} | {tensor.name for tensor in body.initializer}
    own |= {name for node in body.node for name in node.output}
    read = {name for node in body.node for name in _names_read(node)} | {value.name for value in body.output}
    yield from read - own


def _typed(name: str, value: Any) -> onnx.ValueInfoProto:
    if value.is_tensor():
        return onnx.helper.make_tensor_value_info(name, value.element_type(), None)
    sequence = _SEQUENCE.fullmatch(value.data_type())
    if sequence:
        element = onnx.TensorProto.DataType.Value(sequence[1].upper())
        return onnx.helper.make_tensor_sequence_value_info(name, element, None)
    raise TypeError(f"{name} is a {value.data_type()}, which cannot be handed from node to node")


def _whole(file: ModelFile, tensor: onnx.TensorProto) -> onnx.TensorProto | None:
    """The tensor with its data in it, where that is small or of a type that can only travel so."""
    outside = file.is_detached(tensor) or is_external(tensor)
    if not outside:
        return tensor
    if onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).isbuiltin == _NUMPYS_OWN:
        return None
    raw = bytes(file.weights[tensor.name].raw())
    return onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)


def _inside(tensor: onnx.TensorProto) -> np.ndarray | None:
    return None if tensor.data_type == onnx.TensorProto.STRING else onnx.numpy_helper.to_array(tensor)


def _outside(file: ModelFile, tensor: onnx.TensorProto) -> np.ndarray:
    kind = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    array: np.ndarray = np.frombuffer(file.weights[tensor.name].raw(), dtype=kind)
    return array.reshape(tuple(tensor.dims))
