"""Times, errors and differences on the page."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper
from playwright.sync_api import Page, expect
from tests.support.overlaid_pages import profile_text
from tests.support.page_reading import Reader, drawn_texts
from tests.support.small_file import SmallFile

import modelexport as mx

pytestmark = pytest.mark.slow


def slice_colours(page: Page) -> dict[str, str]:
    """What is drawn in the map, by its text."""
    slices = page.locator("#map .slice")
    found = [slices.nth(place) for place in range(slices.count())]
    return {
        (one.locator("text").text_content() or "").strip(): one.locator("path.surface").evaluate("it => it.style.fill")
        for one in found
        if one.locator("text").count()
    }


def test_overlays_colour_and_are_listed(reader: Reader, shown: Path) -> None:
    page = reader.open(shown, "#/layers.0.fc")
    assert page.locator("#colour").input_value() == "error"  # what was found wrong comes first
    expect(page.locator("#details")).to_contain_text("diverges")
    expect(page.locator("#details")).to_contain_text("12 dB")
    expect(page.locator("#details .tile", has_text="Time")).to_contain_text("8 µs")
    expect(page.locator("#details td", has_text="proved")).to_have_count(1)
    page.goto(shown.as_uri() + "#/")
    colours = {}
    for name in ("error", "time", "confidence", "class"):
        page.locator("#colour").select_option(name)
        slices = page.locator("#map .slice path.surface")
        colours[name] = tuple(slices.nth(place).evaluate("one => one.style.fill") for place in range(slices.count()))
    assert len(set(colours.values())) == 4
    page.locator("#size").select_option("time")
    expect(page.locator("#map .slice").first).to_be_visible()


def test_what_a_module_does_itself_and_single_nodes_have_a_colour_too(reader: Reader, shown: Path) -> None:
    page = reader.open(shown, "#/layers.0.fc")
    page.locator("#colour").select_option("time")
    boxes = "[...document.querySelectorAll('#flow path[fill-rule]')].map(it => it.style.fill)"
    assert "rgb(125, 44, 5)" in page.evaluate(boxes)  # the only node, and so the slowest part of what is opened
    page.goto(shown.as_uri() + "#/layers.1")
    expect(page.locator("#legend")).to_contain_text("32 µs")  # its slowest part, not that of the model
    colours = slice_colours(page)
    assert len({colours["fc"], colours["its own"], colours["1"]}) == 3


def test_a_difference_colours_modules_and_leads_to_them(reader: Reader, tmp_path: Path) -> None:
    path, other = (SmallFile().write(tmp_path / name) for name in ("small.onnx", "other.onnx"))
    model = onnx.load(other)
    weight = next(item for item in model.graph.initializer if item.name == "layers.1.fc.weight")
    weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 2, weight.name))
    onnx.save(model, other)
    page = reader.open(mx.view(path, against=other).path)
    assert page.locator("#colour").input_value() == "difference"
    assert "changed" in (page.locator("#legend").text_content() or "")
    page.locator("#details a", has_text="layers.1.fc").first.click()
    expect(page.locator("#details details", has_text="Difference")).to_contain_text("layers.1.fc.weight")
    expect(page.locator("#details details", has_text="Difference")).to_contain_text("against other.onnx")
    page.goto(page.url.split("#")[0] + "#/layers")
    colours = slice_colours(page)
    assert colours["1"] != colours["0"]
    page.goto(page.url.split("#")[0] + "#/emb")
    expect(page.locator("#details details", has_text="Difference")).to_contain_text("None in this module itself.")


def test_what_an_overlay_says_is_never_markup(reader: Reader, tmp_path: Path) -> None:
    markup = "</script><img src=x onerror=window.hacked=1>\u202e"
    overlay = json.loads(profile_text()) | {"notes": [markup], "file": f"x/{markup}", "optimization": markup}
    (tmp_path / "profile.json").write_text(json.dumps(overlay))
    page = reader.open(mx.view(SmallFile().write(tmp_path / "small.onnx"), overlays=[tmp_path / "profile.json"]).path)
    expect(page.locator("#notes")).to_contain_text("<img src=x onerror=window.hacked=1>\\u202e")
    assert page.evaluate("window.hacked") is None
    assert page.locator("img").count() == 0
    assert drawn_texts(page, "#map")
