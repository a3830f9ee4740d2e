"""Whether `verify` finds faults that are planted: all of them, where they are, and nothing else.

The checks that hold the project to its word are only worth as much as what they find.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from tests.support import planted_faults as planting
from tests.support.architectures import build
from tests.support.exports import Exports

import modelexport as mx
from modelexport.attribute.strategies import NAMES as STRATEGIES

pytestmark = pytest.mark.slow

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES)
both = pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])

Judged = Callable[[str, str, str], mx.ExportResult]


@pytest.fixture(scope="module")
def judged(exports: Exports, tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """An architecture, exported and judged by a strategy."""

    @cache
    def made(name: str, exporter: str, strategy: str) -> mx.ExportResult:
        if strategy == "enhanced_semantic":
            return exports(name, exporter)
        folder = tmp_path_factory.mktemp(f"{name}-{strategy}")
        return mx.export(build(name), folder / "m.onnx", exporter=exporter, strategy=strategy, no_check=True)

    return made


@cache
def sound(path: Path, name: str) -> mx.Verification:
    return mx.verify(path, build(name))


def contradicted(found: mx.Verification) -> set[str]:
    assert found.proof is not None
    return {node.key for node in found.proof.contradicted}


@every_strategy
@pytest.mark.parametrize("name", ["bert", "albert", "resnet"])
def test_what_a_strategy_says_is_not_contradicted(judged: Judged, name: str, strategy: str) -> None:
    result = judged(name, "torchscript", strategy)
    wrong = contradicted(sound(result.path, name))
    if (strategy, name) == ("universal", "resnet"):
        # It repeats what the exporter says, and TorchScript leaves out the norms that it folded.
        assert {result.provenance.nodes[key].op_type for key in wrong} == {"Conv"}
    else:
        assert not wrong


@both
@every_strategy
def test_swapped_layers_are_caught(judged: Judged, exporter: str, strategy: str, tmp_path: Path) -> None:
    result = judged("bert", exporter, strategy)
    planted = planting.swapped_layers(result.provenance, planting.provable(sound(result.path, "bert")))
    found = mx.verify(planted.write(result.path, tmp_path / "m.onnx"), build("bert"))
    assert planted.nodes
    assert contradicted(found) == planted.nodes
    assert not found.ok


@both
@every_strategy
def test_tags_moved_to_a_sibling_are_caught(judged: Judged, exporter: str, strategy: str, tmp_path: Path) -> None:
    result = judged("bert", exporter, strategy)
    planted = planting.moved_to_sibling(result.provenance, planting.provable(sound(result.path, "bert")))
    found = mx.verify(planted.write(result.path, tmp_path / "m.onnx"), build("bert"))
    assert planted.nodes
    assert contradicted(found) == planted.nodes


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if name != "usage_based"])
def test_shifted_calls_are_caught(judged: Judged, strategy: str, tmp_path: Path) -> None:
    """`usage_based` claims nothing for modules that run several times."""
    result = judged("albert", "torchscript", strategy)
    planted = planting.shifted_calls(result.provenance, planting.provable(sound(result.path, "albert")))
    found = mx.verify(planted.write(result.path, tmp_path / "m.onnx"), build("albert"))
    assert planted.nodes
    assert contradicted(found) == planted.nodes


@pytest.mark.parametrize("strategy", ["enhanced_semantic", "htp", "all"])
@pytest.mark.parametrize("keep", [0, 1])
def test_a_dropped_owner_is_caught(judged: Judged, strategy: str, keep: int, tmp_path: Path) -> None:
    """A convolution with the norm that was folded into it: neither of them may be left out."""
    result = judged("resnet", "torchscript", strategy)
    planted = planting.dropped_owner(result.provenance, planting.provable(sound(result.path, "resnet")), keep=keep)
    found = mx.verify(planted.write(result.path, tmp_path / "m.onnx"), build("resnet"))
    assert planted.nodes
    assert contradicted(found) == planted.nodes


@both
@pytest.mark.parametrize("name", ["bert", "vit"])
@pytest.mark.parametrize("keep", [False, True], ids=["moved", "added"])
def test_no_float_is_shown_to_be_of_a_strange_module(
    judged: Judged, name: str, exporter: str, keep: bool, tmp_path: Path
) -> None:
    """All floats, not only those that values can tell of.

    Nearly all are contradicted, a module too many as well as another one. The rest is not provable: few numbers.
    """
    result = judged(name, exporter, "enhanced_semantic")
    before = sound(result.path, name)
    assert before.proof is not None
    floats = {node.key for node in before.proof.nodes if node.compute}
    planted = planting.moved_anywhere(result.provenance, floats, keep=keep)
    found = mx.verify(planted.write(result.path, tmp_path / "m.onnx"), build(name))
    assert found.proof is not None
    verdicts = {node.key: node.verdict for node in found.proof.nodes}
    assert {verdicts[key] for key in planted.nodes} <= {mx.Verdict.CONTRADICTED, mx.Verdict.NOT_PROVABLE}
    assert len(contradicted(found)) >= 0.92 * len(planted.nodes)
    faults = {node.fault for node in found.proof.contradicted}
    assert faults == {mx.Fault.TOO_WIDE if keep else mx.Fault.ANOTHER_MODULE}
    assert contradicted(found) <= planted.nodes


@both
@pytest.mark.parametrize(
    ("name", "module"),
    [("bert", "encoder.layer.1.attention.self.key"), ("gpt2", "transformer.h.0.mlp.c_fc"), ("vit", "layernorm")],
)
def test_a_perturbed_weight_is_found(exports: Exports, exporter: str, name: str, module: str, tmp_path: Path) -> None:
    result = exports(name, exporter)
    weight = next(key for key, answer in result.provenance.initializers.items() if answer.module == module)
    found = mx.verify(planting.perturbed_weight(result.path, tmp_path / "m.onnx", weight), build(name))
    assert found.divergence is not None
    assert [str(call) for call in found.divergence.calls] == [module]
    assert found.parameters is not None
    assert all(item.name.startswith(f"{module}.") for item in found.parameters.differing)
    assert not found.ok


@both
@pytest.mark.parametrize(
    ("name", "module"), [("bert", "encoder.layer.1.attention.self"), ("gpt2", "transformer.h.1.attn")]
)
def test_a_wrong_axis_in_a_transpose_is_found(
    exports: Exports, exporter: str, name: str, module: str, tmp_path: Path
) -> None:
    """What the heads found is put together in the wrong order."""
    result = exports(name, exporter)
    entries = result.provenance.nodes.values()
    *_, last = (one.key for one in entries if one.op_type == "Transpose" and one.attribution.module == module)
    wrong = planting.changed_attribute(result.path, tmp_path / "m.onnx", last, {"perm": [0, 2, 3, 1]})
    found = mx.verify(wrong, build(name))
    assert found.divergence is not None
    assert str(found.divergence.calls[0]) == module  # GPT-2 shares the next node with the projection behind it
    assert contradicted(found) == set()


@both
def test_a_wrong_axis_is_found(exports: Exports, exporter: str, tmp_path: Path) -> None:
    result = exports("bert", exporter)
    module = "encoder.layer.1.attention.self"
    key = next(
        entry.key
        for entry in result.provenance.nodes.values()
        if entry.op_type == "Softmax" and entry.attribution.module == module
    )
    found = mx.verify(planting.changed_attribute(result.path, tmp_path / "m.onnx", key, {"axis": -2}), build("bert"))
    assert found.divergence is not None
    assert [str(call) for call in found.divergence.calls] == [module]
    assert contradicted(found) == set()
