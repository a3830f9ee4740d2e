"""The page of a package: where it goes, what it may not replace, what it is compared and coloured with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import overlaid_pages
from tests.support.overlaid_pages import profile_text
from tests.support.packages import DECODER, PackageRecipe, folder_content, package_path

import modelexport as mx
from modelexport.api.package_reading import share_overlay_paths

__all__ = ["package_path"]


def test_the_page_lies_beside_the_folder(package_path: Path) -> None:
    before = folder_content(package_path)
    result = mx.view(mx.open_package(package_path))
    assert result.path == package_path.with_name("talker.html")
    assert result.page.nodes == 16
    assert result.page.has_nodes
    assert "vision (Tower) is in no file of the package: generate never called it." in result.page.notes
    assert folder_content(package_path) == before


def test_a_name_with_a_dot_is_kept(tmp_path: Path) -> None:
    package = mx.open_package(PackageRecipe().write(tmp_path / "qwen2.5"))
    assert mx.view(package).path.name == "qwen2.5.html"


def test_many_nodes_are_left_out_over_all_files(package_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelexport.api.view.MOST_NODES", 14)
    page = mx.view(mx.open_package(package_path)).page
    assert not page.has_nodes
    assert page.notes[0].startswith("Modules alone are shown: 16 nodes")


def test_a_page_never_replaces_a_file_of_the_package(package_path: Path) -> None:
    before = folder_content(package_path)
    for name in ("decoder_model.onnx", "config.json", "modelexport.json"):
        with pytest.raises(mx.UserError, match="would be lost"):
            mx.view(mx.open_package(package_path), package_path / name)
    assert folder_content(package_path) == before


def test_sizes_are_for_the_files_that_have_the_axis(package_path: Path) -> None:
    package = mx.open_package(package_path)
    assert mx.view(package, at={"past_sequence": 7}).size
    with pytest.raises(mx.UserError, match="no file of"):
        mx.view(package, at={"width": 7})
    with pytest.raises(mx.UserError, match="cannot have the size"):
        mx.view(package, at={"past_sequence": 0})


def test_packages_are_compared_with_packages(package_path: Path, tmp_path: Path) -> None:
    changed = replace(DECODER, rows=[*DECODER.rows[:-1], ("logits", "Gemm", ("h1", "head.weight"), "head", {})])
    other = mx.open_package(PackageRecipe(decoder=changed).write(tmp_path / "other"))
    package = mx.open_package(package_path)
    assert mx.view(package, against=other).size > 0
    with pytest.raises(mx.UserError, match="is a package, and"):
        mx.view(package, against=package_path / "encoder_model.onnx")
    with pytest.raises(mx.UserError, match="is a package, and"):
        mx.view(package_path / "encoder_model.onnx", against=other)


def test_an_overlay_of_another_model_is_refused(package_path: Path, tmp_path: Path) -> None:
    overlay = tmp_path / "profile.json"
    overlay.write_text(profile_text(), encoding="utf-8")
    with pytest.raises(mx.UserError):
        mx.view(mx.open_package(package_path), overlays=[overlay])


def test_an_overlay_is_laid_over_the_file_that_it_is_about(
    package_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlaid_pages, "OWN_TIMES", {"": 1.0, "encoder": 2.0})
    overlay = tmp_path / "profile.json"
    package = mx.open_package(package_path)
    classes = {'"Net"': '"Talker"', '"Linear"': '"Encoder"'}

    def write_profile(file: str) -> None:
        text = profile_text(file)
        for before, after in classes.items():
            text = text.replace(before, after)
        overlay.write_text(text, encoding="utf-8")

    write_profile("encoder_model.onnx")
    laid = share_overlay_paths(package, [overlay])
    assert [*laid] == ["encoder"]
    assert mx.view(package, overlays=[overlay]).size
    write_profile("vision_model.onnx")
    with pytest.raises(mx.UserError, match="about none of the files"):
        mx.view(package, overlays=[overlay])
