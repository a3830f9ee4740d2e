"""What is said of the files of a package together: modules over all of them, the cache, checks of what joins them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.packages import DECODER, ENCODER, PAIRS, PackageRecipe, TinyFile, edit_description, package_path

import modelexport as mx
from modelexport.inspect.validate import Severity
from modelexport.record.package import AbsentModule, CachePair
from modelexport.record.polynomial import Polynomial

__all__ = ["package_path"]

BATCH, PAST = Polynomial.axis("batch"), Polynomial.axis("past_sequence")


def test_modules_are_counted_over_all_files(package_path: Path) -> None:
    analysis = mx.analyze(mx.open_package(package_path))
    modules = {module.path: module for module in analysis.modules}
    assert modules[""].nodes == {"encoder": 3, "decoder": 13}
    assert modules[""].parameters == 144  # `bridge` once, though both files hold it
    assert modules["bridge"].nodes == {"encoder": 1, "decoder": 1}
    assert modules["bridge"].parameters == 16
    assert modules["decoder.layers"].nodes == {"decoder": 8}
    assert "vision" not in modules
    assert [absent.path for absent in analysis.absent] == ["vision"]
    assert analysis.components["encoder"].coverage.nodes.total == 3


def test_a_filter_keeps_what_has_the_tag(package_path: Path) -> None:
    analysis = mx.analyze(mx.open_package(package_path), "/Talker/Decoder/Layer.0")
    modules = {module.path: module for module in analysis.modules}
    assert modules[""].nodes == {"decoder": 4}
    assert modules[""].parameters == 16
    assert "encoder" not in modules
    assert len(analysis.nodes) == 4


def test_the_cache_is_a_formula_for_each_module(package_path: Path) -> None:
    cost = mx.cost(mx.open_package(package_path))
    by_module = {row.module: row.nbytes for row in cost.cache_by_module}
    assert by_module == {f"decoder.layers.{number}": BATCH * PAST * 16 for number in range(2)}
    assert cost.cache_bytes == {"decoder": BATCH * PAST * 32}
    assert [axis.name for axis in cost.axes] == ["batch", "frames", "sequence", "past_sequence"]


def test_sizes_go_to_the_files_that_have_the_axis(package_path: Path) -> None:
    cost = mx.cost(mx.open_package(package_path), {"past_sequence": 4096, "batch": 1})
    assert cost.cache_bytes == {"decoder": 4096 * 32}
    assert cost.components["encoder"].at == {"batch": 1}
    assert cost.components["decoder"].at == {"past_sequence": 4096, "batch": 1}


def test_the_total_follows_from_the_past_and_what_is_new(tmp_path: Path) -> None:
    rows = [*DECODER.rows, ("seen", "Not", ("mask",), "decoder", {})]
    inputs = {**DECODER.inputs, "mask": ("batch", "total_sequence")}
    shapes = {**DECODER.outputs, "seen": ("batch", "total_sequence")}
    masked = replace(DECODER, rows=rows, inputs=inputs, outputs=shapes, integers=("input_ids", "mask"))
    package = mx.open_package(PackageRecipe(decoder=masked).write(tmp_path / "talker"))
    sizes = {"batch": 1, "frames": 1, "sequence": 1, "past_sequence": 7}
    assert mx.cost(package, sizes).components["decoder"].at["total_sequence"] == 8
    with pytest.raises(mx.UserError, match="total_sequence is 3, and past_sequence 7 and sequence 1 are 8 together"):
        mx.cost(package, {**sizes, "total_sequence": 3})
    assert "total_sequence" not in mx.cost(package, {"past_sequence": 7}).components["decoder"].at
    assert mx.cost(package, sizes).at == sizes


@pytest.mark.parametrize(("past", "held"), [(3, 3), (7, 7), (4096, 7)])
def test_a_window_holds_the_past_until_it_is_full(past: int, held: int, tmp_path: Path) -> None:
    inputs = {**DECODER.inputs, "past_key_values.1.key": ("batch", "past_window", 4)}
    pairs = (PAIRS[0], replace(PAIRS[1], window=7))
    recipe = PackageRecipe(decoder=replace(DECODER, inputs=inputs), cache=pairs)
    package = mx.open_package(recipe.write(tmp_path / "talker"))
    sizes = {"batch": 1, "past_sequence": past}
    assert mx.cost(package, sizes).cache_bytes == {"decoder": past * 16 + held * 16}
    assert mx.cost(package, sizes).at == sizes
    assert mx.cost(package, {**sizes, "past_window": 2}).cache_bytes == {"decoder": past * 16 + 2 * 16}
    # Without a size, with several windows, or of a package that does not say it, it stays a formula.
    assert mx.cost(package).cache[1].nbytes == BATCH * Polynomial.axis("past_window") * 16
    several = replace(recipe, cache=(replace(PAIRS[0], window=3), pairs[1])).write(tmp_path / "several")
    assert mx.cost(mx.open_package(several), sizes).cache[1].nbytes == Polynomial.axis("past_window") * 16


def test_the_root_is_listed_for_its_own_parameters_alone(tmp_path: Path) -> None:
    absent = (AbsentModule("", "Talker", 3, "no file reads them"),)
    validation = mx.validate(mx.open_package(PackageRecipe(absent=absent).write(tmp_path / "talker")))
    assert {(finding.code, finding.subject) for finding in validation.findings} == {
        ("module-absent", "(model)"),
        ("module-lost", "vision"),
    }


def test_an_axis_that_no_file_has_is_refused(package_path: Path) -> None:
    with pytest.raises(mx.UserError, match=r"no file of .* has an axis 'past'") as caught:
        mx.cost(mx.open_package(package_path), {"past": 1})
    assert "past_sequence" in caught.value.hint


def test_the_size_of_a_cache_of_unknown_shape_is_not_known(tmp_path: Path) -> None:
    shapes = {**DECODER.inputs, "past_key_values.0.key": ("batch", "past_sequence", "", 4)}
    file = replace(DECODER, inputs=shapes)
    path = PackageRecipe(decoder=file).write(tmp_path / "talker")
    cost = mx.cost(mx.open_package(path))
    axis = Polynomial.axis("past_key_values.0.key[2]")
    assert cost.cache[0].nbytes == BATCH * PAST * axis * 16


def test_queries_ask_all_files(package_path: Path) -> None:
    package = mx.open_package(package_path)
    nodes = mx.query(package, "module=bridge")
    assert [(component, entry.name) for component, entry in nodes] == [
        ("encoder", "node_last_hidden_state"),
        ("decoder", "node_b"),
    ]
    # Gather is in one of the files only, which is no misspelt name for the other one.
    assert [component for component, _ in mx.query(package, "op=Gather")] == ["decoder"]
    assert mx.query(package, "op=Gather & module=encoder.**") == ()
    assert [component for component, _ in mx.query(package, "op=Gather | op=Relu")] == ["encoder", "decoder"]


@pytest.mark.parametrize("text", ["op=Gahter", "module=encoder.nothing", "op=", "op=Gather &"])
def test_queries_that_no_file_understands_are_errors(text: str, package_path: Path) -> None:
    with pytest.raises(mx.UserError):
        mx.query(mx.open_package(package_path), text)


def codes(path: Path) -> dict[str, str]:
    validation = mx.validate(mx.open_package(path))
    return {finding.code: finding.subject for finding in validation.findings}


def test_a_sound_package_has_no_errors(package_path: Path) -> None:
    validation = mx.validate(mx.open_package(package_path))
    assert validation.ok
    assert [finding.code for finding in validation.findings] == ["module-absent"]
    assert validation.findings[0].severity is Severity.WARNING
    assert all(component.ok for component in validation.components.values())


def test_exchanged_files_are_found_by_their_digests(package_path: Path) -> None:
    (package_path / "config.json").write_text("[]\n")
    assert codes(package_path)["file-changed"] == "config.json"


def test_a_file_that_cannot_be_read_is_a_finding(package_path: Path) -> None:
    path = package_path / "decoder_model.onnx"
    path.write_bytes(b"\xff" * path.stat().st_size)
    assert codes(package_path) == {
        "file-changed": "decoder_model.onnx",
        "component-unreadable": "decoder",
        "module-absent": "vision",
    }


def _with_output(name: str, shape: tuple[int | str, ...]) -> TinyFile:
    return replace(ENCODER, outputs={name: shape})


def _swap_order(document: dict[str, Any]) -> None:
    document["components"][1]["inputs"].reverse()


EDITS: dict[str, Callable[[dict[str, Any]], object]] = {
    "component-inputs": _swap_order,
    "component-outputs": lambda document: document["components"][0]["outputs"].append("pooled"),
    "module-lost": lambda document: document.update(absent=[]),
}


@pytest.mark.parametrize("code", EDITS)
def test_descriptions_that_say_something_else_are_found(code: str, package_path: Path) -> None:
    edit_description(package_path, EDITS[code])
    assert code in codes(package_path)


RECIPES = {
    "link-shape": PackageRecipe(encoder=_with_output("last_hidden_state", ("batch", "frames", 8))),
    "cache-shape": PackageRecipe(
        decoder=replace(DECODER, inputs={**DECODER.inputs, "past_key_values.1.key": ("batch", "past_sequence", 8)})
    ),
    "cache-type": PackageRecipe(decoder=replace(DECODER, integers=("input_ids", "past_key_values.1.key"))),
}


@pytest.mark.parametrize("code", RECIPES)
def test_ends_that_do_not_fit_are_found(code: str, tmp_path: Path) -> None:
    assert code in codes(RECIPES[code].write(tmp_path / "talker"))


def test_swapped_cache_pairs_of_one_shape_fit(tmp_path: Path) -> None:
    """Nothing in shapes tells them apart: that is what `verify` is for."""
    pairs = (
        CachePair("past_key_values.0.key", "present.1.key"),
        CachePair("past_key_values.1.key", "present.0.key"),
    )
    assert "cache-shape" not in codes(PackageRecipe(cache=pairs).write(tmp_path / "talker"))


def test_a_module_with_two_tags_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    provenance = TinyFile.provenance

    def renamed(self: TinyFile) -> Any:
        record = provenance(self)
        if self is ENCODER:
            modules = {
                **record.hierarchy.modules,
                "decoder": replace(record.hierarchy.modules["decoder"], class_name="X"),
            }
            record = replace(record, hierarchy=replace(record.hierarchy, modules=modules))
        return record

    monkeypatch.setattr(TinyFile, "provenance", renamed)
    validation = mx.validate(mx.open_package(PackageRecipe().write(tmp_path / "talker")))
    subjects = [(finding.code, finding.subject) for finding in validation.findings]
    assert ("class-differs", "decoder") in subjects
    assert ("tag-differs", "decoder") in subjects
    assert ("tag-differs", "decoder.layers.0") in subjects
    assert not validation.ok


def test_packages_are_compared_file_by_file(package_path: Path, tmp_path: Path) -> None:
    changed = replace(DECODER, rows=[*DECODER.rows[:-1], ("logits", "Gemm", ("h1", "head.weight"), "head", {})])
    other = mx.open_package(PackageRecipe(decoder=changed, cache=(), links=()).write(tmp_path / "other"))
    package = mx.open_package(package_path)
    assert mx.compare(package, package).identical
    assert mx.diff(package, package).identical
    for pair in (mx.compare(package, other), mx.diff(package, other)):
        assert not pair.identical
        assert pair.components["encoder"].identical
        assert not pair.components["decoder"].identical
        assert [joint.partition(",")[0] for joint in pair.joints] == ["link", "cache of decoder"]


def test_components_of_one_package_alone_are_named(package_path: Path, tmp_path: Path) -> None:
    other = PackageRecipe().write(tmp_path / "other")
    edit_description(other, lambda document: (document["components"].pop(0), document.update(links=[])))
    pair = mx.diff(mx.open_package(package_path), mx.open_package(other))
    assert (pair.only_left, pair.only_right) == (("encoder",), ())
    assert not pair.identical


def test_packages_without_a_common_component_cannot_be_compared(package_path: Path, tmp_path: Path) -> None:
    other = PackageRecipe().write(tmp_path / "other")

    def rename(document: dict[str, Any]) -> None:
        for component in document["components"]:
            component["name"] = f"other_{component['name']}"
        document["links"] = []

    edit_description(other, rename)
    with pytest.raises(mx.UserError, match="no component in common"):
        mx.compare(mx.open_package(package_path), mx.open_package(other))
