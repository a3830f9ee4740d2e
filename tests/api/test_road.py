"""The road end to end, on real architectures and both exporters: what every export must show."""

from __future__ import annotations

import onnx
import onnxruntime
import pytest
from tests.support.architectures import NAMES
from tests.support.exports import Exports

import modelexport as mx

pytestmark = pytest.mark.slow

EXPORTERS = ("dynamo", "torchscript")
every_export = pytest.mark.parametrize(
    ("name", "exporter"), [(name, exporter) for name in NAMES for exporter in EXPORTERS]
)


@every_export
def test_the_file_is_valid_runs_and_equals_pytorch(exports: Exports, name: str, exporter: str) -> None:
    result = exports(name, exporter)
    onnx.checker.check_model(str(result.path), full_check=True)
    onnxruntime.InferenceSession(str(result.path), providers=["CPUExecutionProvider"])
    assert result.check is not None
    assert result.check.ok, result.check.message
    assert result.check.max_abs_diff <= 1e-4


@every_export
def test_every_node_has_a_module_that_exists(exports: Exports, name: str, exporter: str) -> None:
    provenance = exports(name, exporter).provenance
    assert provenance.nodes
    for entry in provenance.nodes.values():
        assert entry.attribution.confidence >= mx.Confidence.INFERRED, entry
        assert entry.attribution.owners, entry
        assert all(owner.path in provenance.hierarchy.modules for owner in entry.attribution.owners), entry


@every_export
def test_every_initializer_has_an_owner(exports: Exports, name: str, exporter: str) -> None:
    provenance = exports(name, exporter).provenance
    assert all(attribution.owners for attribution in provenance.initializers.values())


@every_export
def test_tags_are_unique_and_can_be_read_back(exports: Exports, name: str, exporter: str) -> None:
    tags = exports(name, exporter).provenance.tags
    assert len(set(tags.by_path.values())) == len(tags.by_path)
    assert all(tags.path(tag) == path for path, tag in tags.by_path.items())


@every_export
def test_executed_modules_with_parameters_own_something(exports: Exports, name: str, exporter: str) -> None:
    provenance = exports(name, exporter).provenance
    empty = [path for path in provenance.absent if provenance.hierarchy.modules[path].parameters]
    assert empty == []


@every_export
def test_reading_back_gives_what_was_recorded(exports: Exports, name: str, exporter: str) -> None:
    result = exports(name, exporter)
    assert mx.load(result.path) == result.provenance


@pytest.mark.parametrize("name", NAMES)
def test_both_exporters_give_one_set_of_tags(exports: Exports, name: str) -> None:
    tags = {exporter: _tags_of_owners(exports(name, exporter)) for exporter in EXPORTERS}
    shared = tags["dynamo"].keys() & tags["torchscript"].keys()
    assert len(shared) > len(tags["dynamo"]) * 0.9
    assert {path: tags["dynamo"][path] for path in shared} == {path: tags["torchscript"][path] for path in shared}


def _tags_of_owners(result: mx.ExportResult) -> dict[str, str]:
    provenance = result.provenance
    owners = {owner.path for entry in provenance.nodes.values() for owner in entry.attribution.owners}
    return {path: provenance.tags.tag(path) for path in owners}


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_every_call_of_a_shared_layer_is_told_apart(exports: Exports, exporter: str) -> None:
    """ALBERT runs one layer several times: each call must own a query projection of its own."""
    provenance = exports("albert", exporter).provenance
    query = next(path for path in provenance.hierarchy.modules if path.endswith("attention.query"))
    products = [entry for entry in provenance.nodes.values() if entry.op_type in ("MatMul", "Gemm")]
    calls = [entry.attribution.module for entry in products if entry.attribution.owners[0].path == query]
    assert calls == [query, f"{query}#1", f"{query}#2"]


@pytest.mark.parametrize("exporter", EXPORTERS)
def test_projections_belong_to_the_linear_that_holds_their_weight(exports: Exports, exporter: str) -> None:
    """An independent look: the weight that a projection reads has the size, and the place, of its module."""
    provenance = exports("bert", exporter).provenance
    owners = {entry.attribution.module for entry in provenance.nodes.values() if entry.op_type in ("MatMul", "Gemm")}
    for layer in range(2):
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "intermediate.dense"):
            assert f"encoder.layer.{layer}.{part}" in owners


def test_a_query_projection_is_answered_as_the_mission_says(exports: Exports) -> None:
    provenance = exports("bert", "torchscript").provenance
    attribution = provenance.attribution("/encoder/layer.0/attention/self/query/MatMul")
    assert attribution.module == "encoder.layer.0.attention.self.query"
    assert attribution.confidence is mx.Confidence.EXACT
    assert provenance.tag(attribution) == "/BertModel/BertEncoder/BertLayer.0/BertAttention/BertSelfAttention"
