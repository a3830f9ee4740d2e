"""The page in a real browser: it opens, finds, leads and shows, says nothing in the console, fetches nothing, and runs
nothing that a model calls itself."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, ViewportSize, expect, sync_playwright
from tests.pages.hostile import NAMES, write_hostile
from tests.pages.overlaid import profile_text, verification_text
from tests.small_file import SmallFile

import modelexport as mx

CHROMIUM = shutil.which("chromium")
WIDE, NARROW = ViewportSize(width=1280, height=800), ViewportSize(width=390, height=844)

# Where everything is checked there has to be a browser; elsewhere one can do without.
if CHROMIUM is None and os.environ.get("CI") != "true":
    pytest.skip("chromium is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM is not None, "chromium is not installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Reader:
    """A page that is opened, with all that it complains of and asks for."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", self._asked)

    def _asked(self, request: Request) -> None:
        self.requests.append(request.url)

    def open(self, path: Path, address: str = "") -> Page:
        self.page.goto(path.as_uri() + address)
        self.page.wait_for_selector("body[data-ready]")
        return self.page


@pytest.fixture
def reader(browser: Browser) -> Iterator[Reader]:
    page = browser.new_page(viewport=WIDE)
    page.set_default_timeout(60_000)
    found = Reader(page)
    yield found
    page.close()
    assert found.complaints == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:", "http://127.0.0.1"))] == []


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small file, with times and errors laid over it."""
    folder = tmp_path_factory.mktemp("shown")
    path = SmallFile().write(folder / "small.onnx")
    overlays = []
    for name, text in (("profile", profile_text()), ("verify", verification_text())):
        overlays.append(folder / f"{name}.json")
        overlays[-1].write_text(text)
    return mx.view(path, overlays=overlays).path


def row(page: Page, name: str) -> str:
    return page.locator(f"#tree .row[title^='{name} ·']").get_attribute("id") or ""


def drawn_texts(page: Page, where: str) -> list[str]:
    return [text.strip() for text in page.locator(f"{where} svg text").all_text_contents() if text.strip()]


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
        page.locator("#map .slice").first.hover()
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
