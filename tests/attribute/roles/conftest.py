"""Exports with their roles, made once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from tests.support.exports import Exports

import modelexport as mx
from modelexport.attribute.roles.assign import assign_roles
from modelexport.graph.file.reading import open_model
from modelexport.graph.index import Graph, index_model
from modelexport.record.provenance import Provenance


@pytest.fixture(scope="session")
def assigned(
    exports: Exports, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Graph, Provenance]]:
    """The graph and the record with roles of an architecture or of one of the further networks."""
    from tests.support import architectures
    from tests.support.further_models import NAMES, build

    @cache
    def assign(name: str, exporter: str) -> tuple[Graph, Provenance]:
        result = exports(name, exporter) if name in architectures.NAMES else further(name, exporter)
        graph = index_model(open_model(result.path).proto)
        return graph, assign_roles(graph, result.provenance)

    def further(name: str, exporter: str) -> mx.ExportResult:
        assert name in NAMES
        net, inputs = build(name)
        path = tmp_path_factory.mktemp(f"{name}-{exporter}") / f"{name}.onnx"
        return mx.export(net, path, exporter=exporter, inputs=inputs, no_check=True)

    return assign
