"""The dataflow and the details beside it, as they are used."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect
from tests.support.called_twice import twice
from tests.support.page_reading import Reader, drawn_texts

import modelexport as mx
from modelexport.api.view import make_page
from modelexport.show.page.html import PageServer

pytestmark = pytest.mark.slow


def test_arrows_go_from_box_to_box_and_enter_opens(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    page.locator("#flow").focus()
    said = page.locator(".flow [role=status]")
    page.keyboard.press("ArrowDown")
    expect(said).to_contain_text("ids")
    page.keyboard.press("ArrowDown")
    expect(said).to_contain_text("emb Embedding; reads from ids; leads to layers.0, Add")
    ring = page.locator("#flow .ring").bounding_box()
    box = page.locator("#flow svg text", has_text="emb").bounding_box()
    assert ring is not None
    assert box is not None
    assert ring["x"] <= box["x"] <= ring["x"] + ring["width"]
    assert ring["y"] <= box["y"] <= ring["y"] + ring["height"]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("#details header h2")).to_contain_text("layers.0")
    expect(page.locator("#flow .ring")).to_be_hidden()


def test_every_call_has_a_flow_and_its_nodes_come_first(reader: Reader, tmp_path: Path) -> None:
    path = mx.view(twice().write(tmp_path / "twice.onnx")).path
    page = reader.open(path, "#/layers.0?call=1")
    expect(page.locator("#flow-calls option:checked")).to_have_text("#1, 2 of 2")
    expect(page.locator("#details")).to_contain_text("calls2")
    nodes = page.locator("#details details", has_text="Nodes of its own")
    expect(nodes.locator("tbody tr").first).to_contain_text("node_r1")
    page.locator("#flow-calls select").select_option("0")
    expect(nodes.locator("tbody tr").first).to_contain_text("node_r0")
    assert page.url.endswith("#/layers.0")


def test_nodes_of_modules_inside_are_listed_when_asked_for(reader: Reader, shown: Path) -> None:
    page = reader.open(shown, "#/layers")
    part = page.locator("#details details", has_text="Nodes of modules inside")
    assert part.locator("table").count() == 0
    part.locator("summary").click()
    expect(part.locator("tbody tr")).to_have_count(4)
    expect(part.locator("tbody tr").first).to_contain_text("node_h0layers.0.fcscope:hand")
    expect(part.locator("tbody tr .badge").first).to_have_text("exact")


def test_a_path_can_be_copied(reader: Reader, shown: Path) -> None:
    reader.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page = reader.open(shown, "#/layers.0.fc")
    page.locator("#details header .named .copy").click()
    expect(page.locator("#details header .named .copy")).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == "layers.0.fc"


def test_a_node_is_found_by_what_it_does_and_where(reader: Reader, shown: Path) -> None:
    page = reader.open(shown)
    page.locator("#search").fill("layers.1 relu")
    expect(page.locator("#results [role=option]")).to_have_count(1)
    expect(page.locator("#results [role=option]")).to_contain_text("node_r1")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.press("Enter")  # nothing is asked for any more, so nothing opens
    assert page.locator("#details header h2").text_content() == "Net"


def test_a_page_that_is_served_is_the_same_page(reader: Reader, small_path: Path) -> None:
    with PageServer(make_page(small_path).html) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        page = reader.page
        page.goto(server.url + "#/layers.0")
        page.wait_for_selector("body[data-ready]")
        assert drawn_texts(page, "#flow")
        assert {url.split("#")[0] for url in reader.requests if not url.startswith("data:")} == {server.url}
        server.shutdown()
        thread.join()
