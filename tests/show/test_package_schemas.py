"""What verbs write of packages as JSON conforms to the published schemas, those of the files inside included."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from tests.support.packages import DECODER, PackageRecipe, package_path

import modelexport as mx
from modelexport.show.data.results import to_csv, to_json

jsonschema = pytest.importorskip("jsonschema")
referencing = pytest.importorskip("referencing")

__all__ = ["package_path"]


def conforms(text: str, name: str) -> dict[str, Any]:
    files = (resources.files("modelexport.record") / "schema").iterdir()
    schemas = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    registry = referencing.Registry().with_resources(
        (schema["$id"], referencing.Resource.from_contents(schema)) for schema in schemas
    )
    wanted = next(schema for schema in schemas if schema["$id"] == f"urn:modelexport:schema:{name}:1")
    document: dict[str, Any] = json.loads(text)
    jsonschema.Draft202012Validator(wanted, registry=registry).validate(document)
    return document


def test_descriptions_on_disk_conform(package_path: Path) -> None:
    conforms((package_path / "modelexport.json").read_text(encoding="utf-8"), "package")


@pytest.mark.parametrize("filter_tag", [None, "Layer"])
def test_analyses_conform(filter_tag: str | None, package_path: Path) -> None:
    document = conforms(to_json(mx.analyze(mx.open_package(package_path), filter_tag)), "package_analysis")
    assert document["cache"][0]["shape"] == ["batch", "past_sequence", 4]
    assert document["absent"][0]["path"] == "vision"


@pytest.mark.parametrize("at", [{}, {"batch": 2, "past_sequence": 8}])
def test_costs_conform(at: dict[str, int], package_path: Path) -> None:
    document = conforms(to_json(mx.cost(mx.open_package(package_path), at)), "package_cost")
    expected = 2 * 2 * 8 * 4 * 4 if at else "32*batch*past_sequence"
    assert document["cache_bytes"] == {"decoder": expected}


def test_differences_conform(package_path: Path, tmp_path: Path) -> None:
    changed = replace(DECODER, rows=[*DECODER.rows[:-1], ("logits", "Gemm", ("h1", "head.weight"), "head", {})])
    other = PackageRecipe(decoder=changed, absent=()).write(tmp_path / "other")
    difference = mx.diff(mx.open_package(package_path), mx.open_package(other))
    document = conforms(to_json(difference), "package_diff")
    assert document["joints"] == ["module in no file, removed: vision"]
    assert not document["identical"]


def test_rows_begin_with_their_component(package_path: Path) -> None:
    package = mx.open_package(package_path)
    nodes = [line.split(",") for line in to_csv(mx.analyze(package)).splitlines()]
    assert nodes[0][:2] == ["component", "name"]
    assert [row[0] for row in nodes[1:]] == ["encoder"] * 3 + ["decoder"] * 13
    modules = to_csv(mx.cost(package), "modules").splitlines()
    assert modules[0].startswith("component,module,class,")
    assert modules[1].startswith("encoder,,Talker,")


def test_changes_conform(package_path: Path, tmp_path: Path) -> None:
    package = mx.open_package(package_path)
    quantized = mx.quantize(package, tmp_path / "int8", components=["decoder"])
    document = conforms(to_json(quantized), "package_change")
    assert (document["package"], document["copied"]) == (str(tmp_path / "int8"), ["encoder"])
    assert document["components"]["decoder"]["excluded"] == []
    tooled = mx.run_tool(package, "onnxslim", tmp_path / "slim")
    assert [*conforms(to_json(tooled), "package_change")["components"]] == ["encoder", "decoder"]
    linked = mx.relink(mx.open_package(tmp_path / "slim"), before=package)
    assert conforms(to_json(linked), "package_change")["package"] is None
