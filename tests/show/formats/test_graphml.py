"""GraphML loses nothing on the way through networkx, however odd the names are."""

from __future__ import annotations

import warnings
from pathlib import Path
from xml.etree import ElementTree as ET

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.bench.odd_model import odd_model
from measure.bench.plain_graph import plain_graph
from measure.bench.read_back import by_networkx, unescaped
from measure.bench.round_trips import difference
from tests.support.exports import Exports
from tests.support.graphs import models
from tests.support.hostile_names import PATHS, hostile_file

import modelexport as mx
from modelexport.show.formats.dot_mermaid_graphml_csv import _writable

nx = pytest.importorskip("networkx")
SPACE = "{http://graphml.graphdrawing.org/xmlns}"


def assert_nothing_is_lost(path: Path, folder: Path) -> None:
    written = mx.convert(path, folder / "a.graphml", "graphml").path
    found = difference(plain_graph(path), by_networkx(written))
    assert (found.lost, found.added) == ((), ())


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["bert", "t5"])
def test_exports_are_read_back(name: str, exporter: str, exports: Exports, tmp_path: Path) -> None:
    assert_nothing_is_lost(exports(name, exporter).path, tmp_path)


def test_every_kind_of_attribute_body_and_function_is_read_back(tmp_path: Path) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    assert_nothing_is_lost(tmp_path / "odd.onnx", tmp_path)


@given(model=models())
def test_random_graphs_are_read_back(model: onnx.ModelProto, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("random")
    onnx.save(model, folder / "a.onnx")
    assert_nothing_is_lost(folder / "a.onnx", folder)


def test_what_is_lost_is_found(small_path: Path, tmp_path: Path) -> None:
    """A comparison that finds nothing would hold for everything."""
    written = mx.convert(small_path, tmp_path / "a.graphml", "graphml").path
    whole, read = plain_graph(small_path), by_networkx(written)
    del read.nodes["h0"]
    read.edges = {edge for edge in read.edges if edge[2] != "r1"}
    found = difference(whole, read)
    assert "node h0" in found.lost
    assert any(one.startswith("edge") for one in found.lost)
    assert any("op_type of h0" in one for one in found.lost)


def test_modules_are_groups_inside_of_each_other(small_path: Path, tmp_path: Path) -> None:
    written = mx.convert(small_path, tmp_path / "a.graphml", "graphml").path
    read = nx.read_graphml(written)
    labels = {number: data["label"] for number, data in read.nodes(data=True)}
    parents = {data["label"]: labels.get(data.get("parent", "")) for _, data in read.nodes(data=True)}
    assert parents["fc (Linear)"] in ("layers.0 (Block)", "layers.1 (Block)")
    assert parents["layers.0 (Block)"] is None
    assert parents["layers.0.fc.weight"] == "fc (Linear)"
    assert parents["ids"] is None


def test_groups_are_nested_as_their_parents_say(small_path: Path, tmp_path: Path) -> None:
    root = ET.parse(mx.convert(small_path, tmp_path / "a.graphml", "graphml").path).getroot()
    parent = next(key.get("id") for key in root.iter(f"{SPACE}key") if key.get("attr.name") == "parent")
    inside = 0
    for group in root.iter(f"{SPACE}node"):
        for child in group.findall(f"{SPACE}graph/{SPACE}node"):
            said = [data.text for data in child.findall(f"{SPACE}data") if data.get("key") == parent]
            assert said == [group.get("id")]
            inside += 1
    assert inside == 10  # all but the input, the output, the node of the model, and what is directly in it


def test_names_that_xml_cannot_write_come_back(tmp_path: Path) -> None:
    path = hostile_file(tmp_path / "hostile.onnx")
    assert_nothing_is_lost(path, tmp_path)
    read = nx.read_graphml(tmp_path / "a.graphml")
    groups = [data for _, data in read.nodes(data=True) if data["kind"] == "module"]
    assert {unescaped(group["module"]) for group in groups} == {*PATHS, *(f"{name}.{name}" for name in PATHS)}


@given(st.text() | st.text(alphabet="\x7f\x9b_x0041F\r\n\x01\ufffe\ud800"))
def test_any_text_comes_back(text: str) -> None:
    written = _writable(text)
    assert not [one for one in written if (one < " " and one not in "\t\n") or "\x7f" <= one < "\xa0"]
    element = ET.Element("a")
    element.text = written
    assert unescaped(ET.fromstring(ET.tostring(element)).text or "") == text


def test_numbers_keep_their_type(tmp_path: Path) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    read = nx.read_graphml(mx.convert(tmp_path / "odd.onnx", tmp_path / "a.graphml", "graphml").path)
    data = next(data for _, data in read.nodes(data=True) if data.get("op_type") == "Everything")
    assert (data["onnx.int"], data["onnx.whole"], data["onnx.text"]) == (1, 2.0, "'1'")
    assert isinstance(data["onnx.whole"], float)
    assert data["onnx.ints"] == "[1, -2]"


def test_networkx_has_nothing_to_say(small_path: Path, tmp_path: Path) -> None:
    written = mx.convert(small_path, tmp_path / "a.graphml", "graphml").path
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nx.read_graphml(written)
