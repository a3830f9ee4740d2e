from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.support.small_file import NODES, SmallFile, credited

from modelexport.api.read import analyze
from modelexport.inspect.analyze import Analysis, ModuleFacts, RoleFacts
from modelexport.record.provenance import Confidence, EvidenceKind


def module(analysis: Analysis, path: str) -> ModuleFacts:
    return next(found for found in analysis.modules if found.path == path)


def test_modules_are_summed_up_with_those_inside(small_path: Path) -> None:
    analysis = analyze(small_path)
    root, block = module(analysis, ""), module(analysis, "layers.0")
    assert (root.own.nodes, root.total.nodes) == (1, 6)
    assert (root.own.parameters, root.total.parameters) == (0, 72)
    assert (root.own.bytes, root.total.bytes) == (0, 288)
    assert block.own.op_types == {"Relu": 1}
    assert block.total.op_types == {"MatMul": 1, "Relu": 1}
    assert (block.class_name, block.calls) == ("Block", 1)
    assert module(analysis, "layers.0.fc").tag == ""
    assert module(analysis, "layers.0").tag == "/Net/Block.0"


def test_a_shared_node_belongs_to_the_module_around_its_owners(small: SmallFile, tmp_path: Path) -> None:
    shared = small.but(h0=credited("layers.0.fc", "layers.1.fc"))
    analysis = analyze(shared.write(tmp_path / "a.onnx"))
    assert module(analysis, "layers.0.fc").own.nodes == 0
    assert module(analysis, "layers.1.fc").own.nodes == 1
    assert module(analysis, "layers").total.nodes == 3
    assert (module(analysis, "").own.nodes, module(analysis, "").own.shared) == (2, 1)
    assert module(analysis, "").total.nodes == 6
    assert "layers.0.fc" not in {found.path for found in analysis.unowned}  # it has work, in company
    entry = next(node for node in analysis.nodes if node.key == "h0")
    assert (entry.module, entry.modules) == ("", ("layers.0.fc", "layers.1.fc"))


def test_coverage_is_tiered(small: SmallFile, tmp_path: Path) -> None:
    guessed = small.but(y=credited("", confidence=Confidence.INFERRED))
    coverage = analyze(guessed.write(tmp_path / "a.onnx")).coverage
    assert coverage.nodes.total == 6
    assert coverage.nodes.by_confidence[Confidence.EXACT] == 5
    assert coverage.nodes.by_confidence[Confidence.INFERRED] == 1
    assert coverage.nodes.share(1) == pytest.approx(1 / 6)
    assert coverage.nodes.by_evidence[EvidenceKind.SCOPE] == 6
    assert coverage.initializers.by_confidence[Confidence.EXACT] == 3


def test_modules_that_own_nothing_say_why(small_path: Path) -> None:
    unowned = {found.path: found for found in analyze(small_path).unowned}
    assert list(unowned) == ["layers", "drop"]
    assert unowned["drop"].reason == "it was not called"
    assert unowned["layers"].inside
    assert "holds" in unowned["layers"].reason


def test_a_filter_keeps_what_has_the_text_in_its_tag(small_path: Path) -> None:
    analysis = analyze(small_path, filter_tag="Block.1")
    assert [node.key for node in analysis.nodes] == ["h1", "r1"]
    assert [found.path for found in analysis.modules] == ["", "layers", "layers.1", "layers.1.fc"]
    assert module(analysis, "").total.parameters == 16
    assert analysis.coverage.nodes.total == 2
    assert analyze(small_path, filter_tag="no such tag").nodes == ()


def test_weights_are_not_read(small_path: Path, tmp_path: Path) -> None:
    model = onnx.load(small_path)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="gone.data")
    (tmp_path / "b.onnx").write_bytes(model.SerializeToString())
    assert module(analyze(tmp_path / "b.onnx"), "").total.bytes == 288


def test_constants_are_not_parameters(small: SmallFile, tmp_path: Path) -> None:
    path = small.write(tmp_path / "a.onnx")
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("axes", TensorProto.INT64, [2], [0, 1]))
    onnx.save(model, path)
    root = module(analyze(path), "")
    assert root.total.parameters == 72


def test_file_facts(small_path: Path, small: SmallFile) -> None:
    file = analyze(str(small_path)).file
    assert (file.exporter, file.strategy, file.ir_version) == ("dynamo", "enhanced_semantic", 10)
    assert file.opsets == {"ai.onnx": 20}
    assert file.matches_record
    assert file.fingerprint == small.provenance().origin.graph
    assert [node.key for node in analyze(small_path).nodes] == [key for key, *_ in NODES]


def test_names_do_not_matter_to_the_fingerprint(small: SmallFile, tmp_path: Path) -> None:
    renamed = replace(small, names={"h0": "/layers.0/fc/MatMul"})
    assert analyze(renamed.write(tmp_path / "a.onnx")).file.matches_record


def test_roles_are_counted_parts_of_one_thing_beside_each_other(small: SmallFile, tmp_path: Path) -> None:
    found = small.but(
        e=replace(credited("emb"), role="embedding"),
        h0=replace(credited("layers.0.fc"), role="mlp.up", layer_id=0),
        r0=replace(credited("layers.0"), role="norm", layer_id=0),
        h1=replace(credited("layers.1.fc"), role="mlp.up", layer_id=1),
        r1=replace(credited("layers.1"), role="mlp.activation", layer_id=1),
    )
    path = found.write(tmp_path / "a.onnx")
    analysis = analyze(path)
    assert analysis.roles == (
        RoleFacts("embedding", 1, ()),
        RoleFacts("mlp.up", 2, (0, 1)),
        RoleFacts("mlp.activation", 1, (1,)),
        RoleFacts("norm", 1, (0,)),
    )
    assert [(node.role, node.layer) for node in analysis.nodes[1:3]] == [("mlp.up", 0), ("norm", 0)]
    assert (analysis.nodes[-1].role, analysis.nodes[-1].layer) == ("", None)
    assert analyze(path, filter_tag="Block.1").roles == (
        RoleFacts("mlp.up", 1, (1,)),
        RoleFacts("mlp.activation", 1, (1,)),
    )


def test_a_record_without_roles(small_path: Path) -> None:
    assert analyze(small_path).roles == ()
