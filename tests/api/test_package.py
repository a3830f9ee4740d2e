"""A package in Python: its files, its components, and one module tree over all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.packages import ABSENT, DECODER, PackageRecipe, package_path

import modelexport as mx

__all__ = ["package_path"]


def test_a_component_answers_for_its_nodes(package_path: Path) -> None:
    package = mx.open_package(package_path)
    assert [*package] == ["encoder", "decoder"]
    assert package["decoder"].attribution("node_k1").module == "decoder.layers.1.k"
    assert package["decoder"].path == package_path / "decoder_model.onnx"
    assert package["encoder"].provenance.boundary("encoder").leaves == ("e1",)
    assert package["decoder"].info.cache[0].present == "present.0.key"


def test_all_files_are_listed(package_path: Path) -> None:
    files = mx.open_package(str(package_path)).files
    assert {*files} == {path for path in package_path.rglob("*") if path.is_file()}


def test_an_unknown_component_is_answered_with_the_nearest(package_path: Path) -> None:
    with pytest.raises(mx.UserError, match="unknown component 'decodr'") as caught:
        mx.open_package(package_path)["decodr"]
    assert "'decoder'" in caught.value.hint


def test_a_module_is_known_in_every_component_that_has_it(package_path: Path) -> None:
    provenance = mx.open_package(package_path).provenance
    assert provenance.components_of("bridge") == ("encoder", "decoder")
    assert provenance.components_of("decoder") == ("decoder",)
    assert provenance.components_of("") == ("encoder", "decoder")
    assert provenance.components_of("vision") == ()
    assert provenance.absent == (ABSENT,)
    assert "decoder.layers.1.k" in provenance.hierarchy.modules
    assert provenance.tags_of("bridge") == dict.fromkeys(("encoder", "decoder"), "/Talker")
    assert provenance.attribution("encoder", "node_e0").module == "encoder.fc"
    with pytest.raises(mx.UserError, match="unknown module"):
        provenance.components_of("nothing")
    with pytest.raises(mx.UserError, match="unknown component"):
        provenance.attribution("nothing", "node_e0")


def test_modules_of_one_component_alone_are_in_the_tree(tmp_path: Path) -> None:
    # A record may hold the modules of its own file only.
    record = DECODER.provenance()
    modules = [module for path, module in record.hierarchy.modules.items() if not path.startswith("encoder")]
    recipe = PackageRecipe().write(tmp_path / "talker")
    provenance = mx.open_package(recipe).provenance
    narrowed = replace(record, hierarchy=replace(record.hierarchy, modules={item.path: item for item in modules}))
    merged = replace(provenance, components={"decoder": narrowed, "encoder": provenance.components["encoder"]})
    assert {*merged.hierarchy.modules} == {*provenance.hierarchy.modules}
