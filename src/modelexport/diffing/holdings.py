"""What the constants of a file hold: a digest each, and their numbers where two of them are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache, cached_property

import numpy as np
import onnx
from onnx.numpy_helper import to_array

from modelexport.diffing.flow import is_literal
from modelexport.graph.canonical import data_of, described, type_of
from modelexport.graph.contents import content_of
from modelexport.graph.external import external_data, is_external
from modelexport.graph.index import Graph, bodies, value_id, walk_nodes
from modelexport.graph.opened import ModelFile

_DIGEST_SIZE = 16
_CHUNK = 1 << 24


class Holdings:
    """The constants of a file by the names that its graph has for them; nodes that hold one go by their keys."""

    def __init__(self, file: ModelFile, graph: Graph, *, read_weights: bool = True) -> None:
        """graph  that of the file, without functions"""
        self._file, self._graph = file, graph
        self._read_weights = read_weights
        self._initializers = {tensor.name: tensor for tensor in file.proto.graph.initializer}
        self._literals = {node.key: node for node in graph.nodes if is_literal(node)}
        self.digest = cache(self._digest)

    def _digest(self, name: str) -> str | None:
        """Of type, shape and content; None for what is large and not to be read."""
        content = self._content(name)
        if content is not None:
            return hashlib.blake2b(content, digest_size=_DIGEST_SIZE).hexdigest()
        tensor = self._graph.initializers.get(name)
        raw = self._raw(name) if tensor is not None and self._read_weights else None
        if tensor is None or raw is None:
            return None
        digest = hashlib.blake2b(described(tensor.dtype, tensor.shape, b""), digest_size=_DIGEST_SIZE)
        for start in range(0, raw.nbytes, _CHUNK):
            digest.update(raw[start : start + _CHUNK])
        return digest.hexdigest()

    def _raw(self, name: str) -> memoryview | None:
        """What does not lie there; of a body, it can be in a file of its own."""
        if name in self._file.weights:
            return self._file.weights[name].raw()
        inner = self._inner.get(name)
        return None if inner is None else external_data(inner, self._file.directory).raw()

    @cached_property
    def _inner(self) -> Mapping[str, onnx.TensorProto]:
        """Tensors of bodies whose data is in another file."""
        inside = (found for key, node in walk_nodes(self._file.proto) for found in bodies(node, key))
        return {
            value_id(body_id, tensor.name): tensor
            for body_id, body in inside
            for tensor in body.initializer
            if is_external(tensor)
        }

    def _content(self, name: str) -> bytes | None:
        """What lies in the structure of the file."""
        literal = self._literals.get(name)
        if literal is not None:
            return literal.attributes if literal.constant is None else literal.constant
        tensor = self._graph.initializers.get(name)
        return None if tensor is None else tensor.content

    def numbers(self, name: str) -> np.ndarray | None:
        """What a constant holds; None for what holds no numbers."""
        tensor = self._initializers.get(name)
        if tensor is not None:
            return None if tensor.data_type == onnx.TensorProto.STRING else content_of(self._file, tensor)
        inner = self._inner.get(name)
        if inner is not None:
            data = bytes(external_data(inner, self._file.directory).raw())
            return to_array(onnx.TensorProto(data_type=inner.data_type, dims=inner.dims, raw_data=data))
        literal = self._literals.get(name)
        content = self._content(name)
        if content is None or (literal is not None and literal.constant is None):
            return None
        dtype, shape = type_of(content)
        if dtype == onnx.TensorProto.STRING:
            return None
        kind = onnx.helper.tensor_dtype_to_np_dtype(dtype)
        found: np.ndarray = np.frombuffer(data_of(content), kind).reshape(shape)
        return found
