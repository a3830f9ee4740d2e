"""The page of a package, in a browser: a switch between its files that keeps the module that is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.packages import package_path
from tests.support.page_reading import Reader, browser, reader

import modelexport as mx

__all__ = ["browser", "package_path", "reader"]

pytestmark = pytest.mark.slow


def test_the_switch_shows_another_file_and_keeps_the_module(reader: Reader, package_path: Path) -> None:
    path = mx.view(mx.open_package(package_path)).path
    page = reader.open(path, "#/bridge")
    assert page.locator("#title").inner_text().startswith("encoder_model.onnx")
    assert page.locator("#component option").all_inner_texts() == ["encoder", "decoder"]
    assert "3 nodes" in page.locator("#summary").inner_text()
    assert "generate never called it" in page.locator("#notes").inner_text()
    with page.expect_navigation():
        page.select_option("#component", "decoder")
    page.wait_for_selector("body[data-ready]")
    assert "13 nodes" in page.locator("#summary").inner_text()
    assert "bridge" in page.title()
    assert page.locator("#component").input_value() == "decoder"
    assert "component=decoder" in page.url


def test_an_address_names_the_file(reader: Reader, package_path: Path) -> None:
    path = mx.view(mx.open_package(package_path)).path
    page = reader.open(path, "#/decoder.layers.0?component=decoder")
    assert "decoder.layers.0" in page.title()
    assert page.locator("#component").input_value() == "decoder"
    # One that is not there leads to the first file.
    page = reader.open(path, "#/?component=nothing")


def test_the_page_of_a_file_has_no_switch(reader: Reader, package_path: Path, tmp_path: Path) -> None:
    path = mx.view(package_path / "encoder_model.onnx", tmp_path / "encoder.html").path
    assert reader.open(path).locator("#component").count() == 0
