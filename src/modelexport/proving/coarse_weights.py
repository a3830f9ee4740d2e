"""Weights with few bits: what is computed from them is no finer, in whatever type that is done."""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, helper

from modelexport.graph.contents import content_of
from modelexport.graph.opened import ModelFile
from modelexport.graph.sample import Sample, sample
from modelexport.proving.weight_samples import rounded_to, sampled
from modelexport.record.lineage import is_made_by_tool
from modelexport.record.provenance import Provenance

_NARROW: dict[int, str] = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
_TYPES = {name: helper.tensor_dtype_to_np_dtype(kind) for kind, name in _NARROW.items()}
# A single number with few bits may be exact.
_FEW = 16


def coarse_weights(file: ModelFile, provenance: Provenance) -> dict[str, Sample]:
    """By name, something as coarse: weights of a narrow type, and those that a tool rounded to one and widened."""
    found = {tensor.name: _format(file, tensor, provenance) for tensor in file.proto.graph.initializer}
    return {name: sample(np.ones(1, _TYPES[narrow])) for name, narrow in found.items() if narrow}


def _format(file: ModelFile, tensor: TensorProto, provenance: Provenance) -> str:
    if math.prod(tensor.dims) < _FEW:
        return ""
    if tensor.data_type != TensorProto.FLOAT:
        return _NARROW.get(tensor.data_type, "")
    attribution = provenance.initializers.get(tensor.name)
    if attribution is None or not is_made_by_tool(attribution):
        return ""
    return rounded_to(sampled(content_of(file, tensor)))
