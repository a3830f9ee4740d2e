"""Which initializers are trained weights, and which are constants that an exporter or a tool made."""

from __future__ import annotations

import math

import onnx

from modelexport.graph.index import Tensor
from modelexport.record.evidence import Attribution
from modelexport.record.hierarchy import Hierarchy

# Exporters make constants of these types for shapes, indices and masks; trained weights never have them.
NEVER_WEIGHTS = frozenset(
    {onnx.TensorProto.INT64, onnx.TensorProto.INT32, onnx.TensorProto.BOOL, onnx.TensorProto.STRING}
)


def is_folded_weight(tensor: Tensor, attribution: Attribution, hierarchy: Hierarchy) -> bool:
    """Whether a tensor without a name in the model stands for a parameter: transposed, scaled or merged."""
    if tensor.name in hierarchy.tensor_owners or tensor.dtype in NEVER_WEIGHTS or math.prod(tensor.shape) < 2:
        return False
    return is_of_trained(attribution, hierarchy)


def is_of_trained(attribution: Attribution, hierarchy: Hierarchy) -> bool:
    """Whether it belongs to a module that has parameters."""
    owners = (hierarchy.modules.get(owner.path) for owner in attribution.owners)
    return any(module is not None and module.parameters for module in owners)
