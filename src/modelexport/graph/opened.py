"""What an opened model is: its structure, and where its weights are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import onnx

from modelexport.graph.index import Graph, index_model
from modelexport.graph.weights import WeightData, has_data


@dataclass(frozen=True, eq=False)
class ModelFile:
    """An ONNX model whose large tensors stay where they are.

    proto: everything but the data of initializers in `weights`; their name, shape and type are there.
    weights: data of the main graph's large and external initializers. Data in `proto` goes before data here.
    directory: the folder that external data is relative to.
    file_name: the file in that folder that was opened; saving over it leaves external data alone.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, WeightData]
    directory: Path | None = None
    file_name: str = ""

    @cached_property
    def graph(self) -> Graph:
        """The index of what `proto` was when it was first asked for. Tagging changes names and metadata only."""
        return index_model(self.proto)

    def is_detached(self, initializer: onnx.TensorProto) -> bool:
        """Whether this initializer's data is neither in the proto nor in an external file."""
        outside = initializer.data_location == onnx.TensorProto.EXTERNAL
        return initializer.name in self.weights and not outside and not has_data(initializer)
