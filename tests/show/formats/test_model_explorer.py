"""Graphs for Model Explorer, read by Model Explorer: by its classes, and by its server and page in Chromium."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.bench.odd_model import odd_model
from measure.bench.plain_graph import plain_graph
from measure.bench.read_back import Explorer, model_explorer, unshown
from measure.bench.round_trips import difference
from tests.support.exports import Exports
from tests.support.hostile_names import PATHS, hostile_file

import modelexport as mx
from modelexport.show.formats.model_explorer import shown

graph_builder = pytest.importorskip("model_explorer.graph_builder")
pytest.importorskip("playwright")


@pytest.fixture(scope="module")
def explorer() -> Iterator[Explorer]:
    with model_explorer() as found:
        yield found


def converted(path: Path, folder: Path) -> Path:
    return mx.convert(path, folder / "graphs.json", "model-explorer").path


def assert_nothing_is_lost(path: Path, folder: Path, explorer: Explorer) -> None:
    found = difference(plain_graph(path), explorer.read(converted(path, folder)))
    assert (found.lost, found.added) == ((), ())


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_exports_are_read_back(exporter: str, exports: Exports, tmp_path: Path, explorer: Explorer) -> None:
    assert_nothing_is_lost(exports("bert", exporter).path, tmp_path, explorer)


def test_every_kind_of_attribute_body_and_function_is_read_back(tmp_path: Path, explorer: Explorer) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    assert_nothing_is_lost(tmp_path / "odd.onnx", tmp_path, explorer)


def test_hostile_names_are_read_back(tmp_path: Path, explorer: Explorer) -> None:
    path = hostile_file(tmp_path / "hostile.onnx")
    assert_nothing_is_lost(path, tmp_path, explorer)
    (graph,) = explorer.graphs(tmp_path / "graphs.json")
    groups = [node for node in graph["nodes"] if node["nodeType"] == 1 and "Graph" not in node["label"]]
    assert len(groups) == 2 * len(PATHS)  # no two of them became one, and none became two


def test_it_is_what_the_package_says_that_graphs_are(small_path: Path, tmp_path: Path) -> None:
    document = json.loads(converted(small_path, tmp_path).read_text())
    assert _built(document, graph_builder.GraphCollection) == document


def _built(document: Any, kind: type) -> Any:
    """Through the package's own dataclasses, which refuse what they do not know; without what was left out."""
    inner = {
        "graphs": graph_builder.Graph,
        "nodes": graph_builder.GraphNode,
        "attrs": graph_builder.KeyValue,
        "incomingEdges": graph_builder.IncomingEdge,
        "inputsMetadata": graph_builder.MetadataItem,
        "outputsMetadata": graph_builder.MetadataItem,
        "layoutConfigs": graph_builder.LayoutConfigs,
    }
    made = dict(document)
    for name in inner.keys() & document.keys():
        parts = document[name]
        several = isinstance(parts, list)
        made[name] = [_built(one, inner[name]) for one in parts] if several else _built(parts, inner[name])
    whole = dataclasses.asdict(kind(**made))
    return {name: whole[name] for name in document}


def test_one_layer_for_each_module_call(small_path: Path, tmp_path: Path, explorer: Explorer) -> None:
    (graph,) = explorer.graphs(converted(small_path, tmp_path))
    layers = {node["id"].removesuffix("___group___") for node in graph["nodes"] if node["nodeType"] == 1}
    assert layers == {
        "GraphInputs",
        "GraphOutputs",
        "emb (Embedding)",
        "layers.0 (Block)",
        "layers.0 (Block)/fc (Linear)",
        "layers.1 (Block)",
        "layers.1 (Block)/fc (Linear)",
    }
    assert graph["groupNodeAttributes"]["layers.0 (Block)"] == {
        "module": "layers.0",
        "nodes": "2",
        "tag": "/Net/Block.0",
        "class": "Block",
        "package": "my.nets",
        "parameters": "0",
    }


def test_a_node_has_what_is_known_of_it(small_path: Path, tmp_path: Path, explorer: Explorer) -> None:
    (graph,) = explorer.graphs(converted(small_path, tmp_path))
    node = next(node for node in graph["nodes"] if node["id"] == "h0")
    told = {"module": "layers.0.fc", "class": "Linear", "tag": "/Net/Block.0", "confidence": "exact"}
    assert {name: node["attrs"][name] for name in told} == told
    weight = next(node for node in graph["nodes"] if node["id"] == "layers.0.fc.weight")
    assert weight["label"] == "Const"
    assert weight["outputsMetadata"]["0"] == {"tensor_name": weight["id"], "dtype": "float", "shape": "[4, 4]"}


def test_bodies_and_functions_are_graphs_of_their_own(tmp_path: Path) -> None:
    onnx.save(odd_model(), tmp_path / "odd.onnx")
    graphs = json.loads(converted(tmp_path / "odd.onnx", tmp_path).read_text())["graphs"]
    nodes = {node["id"]: node for graph in graphs for node in graph["nodes"]}
    assert nodes["chosen"]["subgraphIds"] == ["chosen|else_branch", "chosen|then_branch"]
    assert nodes["twice"]["subgraphIds"] == ["own::Twice"]
    ids = [graph["id"] for graph in graphs]
    assert ids[0] == "odd"
    assert {one for node in nodes.values() for one in node.get("subgraphIds", ())} == set(ids[1:])
    # What a branch reads is needed before the node that runs it.
    assert {edge["sourceNodeId"] for edge in nodes["chosen"]["incomingEdges"]} == {"condition", "x", "first"}


def test_the_page_opens_a_file(small_path: Path, tmp_path: Path, explorer: Explorer) -> None:
    """As a user does: the address of the page names the file, and it draws."""
    path = converted(small_path, tmp_path)
    errors: list[str] = []
    page = explorer.page.context.browser.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{explorer.address}/?data={quote(json.dumps({'models': [{'url': str(path)}]}))}")
    page.locator("canvas").first.wait_for(timeout=60_000)
    page.close()
    assert errors == []


@given(st.text() | st.text(alphabet='"＂\\ dense<1>'))
def test_any_text_can_be_shown(text: str) -> None:
    assert '"' not in shown(text)
    assert unshown(shown(text)) == text
