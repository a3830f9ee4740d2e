"""The page in a real browser: it opens, finds, leads and shows, says nothing in the console, fetches nothing, and runs
nothing that a model calls itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.support.hostile_pages import NAMES, write_hostile
from tests.support.page_reading import NARROW, Reader, drawn_texts
from tests.support.small_file import SmallFile

import modelexport as mx

pytestmark = pytest.mark.slow


def row(page: Page, name: str) -> str:
    return page.locator(f"#tree .row[title^='{name} ·']").get_attribute("id") or ""


def test_it_opens_with_modules_a_map_a_flow_and_details(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    assert page.locator("#title").text_content() == "small.onnx"
    assert "6 nodes" in (page.locator("#summary").text_content() or "")
    assert page.locator("#tree [role=treeitem]").count() == 4  # the model, emb, layers, drop
    assert page.locator("#map .slice").count() >= 6
    assert any("emb" in text for text in drawn_texts(page, "#flow"))
    assert page.locator("#details h2").first.text_content() == "Net"


def test_a_search_finds_modules_and_nodes_and_leads_there(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    page.keyboard.press("/")
    page.keyboard.type("matmul h1")
    expect(page.locator("#results [role=option]")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#details .node h2")).to_have_text("node_h1")
    assert page.url.endswith("#/layers.1.fc?node=h1")
    page.locator("#search").fill("linear")
    expect(page.locator("#results [role=option]")).to_have_count(2)
    page.locator("#results [role=option]").nth(1).click()
    expect(page.locator("#details header h2")).to_have_text("layers.1.fc")


def test_a_search_for_nothing_says_so_and_escape_ends_it(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    page.locator("#search").fill("no such thing")
    expect(page.locator("#results .sum")).to_have_text("nothing found")
    page.keyboard.press("Escape")
    expect(page.locator("#results")).to_be_hidden()
    assert page.locator("#search").input_value() == ""


def test_the_tree_is_used_with_the_keyboard(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    tree = page.locator("#tree")
    tree.focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowRight"):  # emb, layers, open it
        page.keyboard.press(key)
    expect(page.locator("#tree [role=treeitem]")).to_have_count(6)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    expect(page.locator("#details header h2")).to_have_text("layers.0")
    expect(page.locator("#tree [aria-selected=true]")).to_contain_text("Block")
    for key in ("ArrowLeft", "ArrowLeft"):  # to layers, and close it
        page.keyboard.press(key)
    expect(page.locator("#tree [role=treeitem]")).to_have_count(4)
    assert tree.get_attribute("aria-activedescendant") == row(page, "layers")
    page.keyboard.press("u")
    expect(page.locator("#details header h2")).to_have_text("layers")


def test_a_click_expands_and_another_shows(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    page.locator(f"#{row(page, 'layers')} .twist").click()
    expect(page.locator("#tree [role=treeitem]")).to_have_count(6)
    assert page.locator("#details header h2").text_content() == "Net"
    page.locator(f"#{row(page, 'layers.1')} .name").click()
    expect(page.locator("#details header h2")).to_have_text("layers.1")


def test_links_lead_and_back_and_forward_work(reader: Reader, shown: Path) -> None:
    page = reader.open(shown, "#/layers.0")
    expect(page.locator("#details header h2")).to_have_text("layers.0")
    page.locator("#details a", has_text="node_r0").click()
    expect(page.locator("#details .node h2")).to_have_text("node_r0")
    page.go_back()
    expect(page.locator("#details .node")).to_have_count(0)
    page.locator("#trail a").first.click()
    expect(page.locator("#details header h2")).to_have_text("Net")
    page.go_back()
    expect(page.locator("#details header h2")).to_have_text("layers.0")
    page.go_forward()
    expect(page.locator("#details header h2")).to_have_text("Net")


def test_a_link_to_what_is_not_there_shows_what_is_nearest(reader: Reader, shown: Path) -> None:
    page = reader.open(shown, "#/layers.0.attention.query")
    expect(page.locator("#notes")).to_contain_text("no module layers.0.attention.query")
    expect(page.locator("#details header h2")).to_have_text("layers.0")


def test_boxes_of_the_map_and_the_flow_lead_to_modules(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    page.locator("#map .slice", has_text=re.compile("^emb$")).click()
    expect(page.locator("#details header h2")).to_have_text("emb")
    page.goto(shown.as_uri() + "#/")
    expect(page.locator("#details header h2")).to_have_text("Net")
    box = page.locator("#flow svg text", has_text="layers.1").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 20, box["y"] + 8)
    page.mouse.click(box["x"] + 20, box["y"] + 8)
    expect(page.locator("#details header h2")).to_have_text("layers.1")


def test_light_and_dark_follow_the_system_until_somebody_chooses(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(ground)
    page.keyboard.press("t")
    assert (page.evaluate(ground), dark) == (light, dark)
    assert light != dark


def test_help_opens_and_closes(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()


def test_a_narrow_screen_needs_no_sideways_scrolling(reader: Reader, shown: Path) -> None:
    reader.page.set_viewport_size(NARROW)
    page = reader.open(shown)
    for pane in ("map", "flow", "details", "tree"):
        page.locator(f".panes [data-pane={pane}]").click()
        expect(page.locator(f"section.{pane}")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
        if pane in ("map", "flow"):
            assert drawn_texts(page, f"#{pane}")


def test_names_are_never_markup(reader: Reader, tmp_path: Path) -> None:
    made = mx.view(write_hostile(tmp_path))
    page = reader.open(made.path)
    modules = page.evaluate("document.querySelectorAll('#tree [role=treeitem]').length")
    assert modules == len(NAMES) + 1
    page.locator("#search").fill("hacked")
    expect(page.locator("#results [role=option]").first).to_be_visible()
    for number in range(modules):
        page.locator(f"#tree .row >> nth={number}").locator(".name").click()
        page.locator("[data-chart=treemap]" if number % 2 else "[data-chart=icicle]").click()
        node = page.locator("#details table a[href*='node=']").first
        node.click()
        expect(page.locator("#details .node")).to_be_visible()
        page.locator("#map .slice").first.hover(position={"x": 8, "y": 8})  # the rest of it may lie below others
        page.locator("#flow").hover()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img, main script, main iframe, svg a, svg image").count() == 0
    assert page.locator("a[href^='javascript']").count() == 0
    shown = page.locator("#tree").text_content() or ""
    assert NAMES[0] in shown
    assert "\\u202eeslaf\\u2028\\u0000" in shown
    assert any("<b>bold" in text for text in drawn_texts(page, "#map") + drawn_texts(page, "#flow") + [shown])


def test_a_page_of_modules_alone_says_so(
    reader: Reader, shown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelexport.api.view.MOST_NODES", 3)
    path = SmallFile().write(tmp_path / "large.onnx")
    page = reader.open(mx.view(path).path, "#/layers.0")
    expect(page.locator("#notes")).to_contain_text("Modules alone are shown: 6 nodes are more than the 3")
    expect(page.locator("#details")).to_contain_text("Nodes are left out")
    assert drawn_texts(page, "#flow")
