"""Roles of graphs made by hand."""

from __future__ import annotations

from collections.abc import Iterable

import onnx
from onnx import TensorProto
from tests.support.building import model, provenance, tree

from modelexport.attribute.roles.assign import assign_roles
from modelexport.graph.index import index_model

NET = tree({"": "Net"})


def table(name: str, *shape: int, dtype: int = TensorProto.FLOAT) -> onnx.TensorProto:
    """A weight of this shape without its data."""
    return TensorProto(name=name, data_type=dtype, dims=shape)


def find(
    *nodes: onnx.NodeProto, inputs: str = "x", outputs: str = "y", weights: Iterable[str | onnx.TensorProto] = ()
) -> dict[str, str]:
    """The roles that were found, by first output; what has none is left out."""
    proto = model(*nodes, inputs=inputs, outputs=outputs, weights=weights)
    found = assign_roles(index_model(proto), provenance(proto, NET, {}))
    return {key: entry.attribution.role for key, entry in found.nodes.items() if entry.attribution.role}
