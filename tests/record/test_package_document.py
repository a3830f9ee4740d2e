"""`modelexport.json` survives writing and reading, and one that is damaged is refused with the place of the damage."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from tests.support.packages import DIGEST, PackageRecipe, packages

from modelexport.errors import RecordUnreadable
from modelexport.record.package import PackageInfo, StoredFile
from modelexport.record.package_document import is_inside, parse_package_document, write_package_document


@given(packages())
def test_a_description_survives_writing_and_reading(info: PackageInfo) -> None:
    assert parse_package_document(write_package_document(info)) == info


@pytest.mark.parametrize("path", ["model.onnx", "onnx/model.onnx", "a/b/c.json", "..a", "a..b/c", "ä.onnx"])
def test_paths_inside(path: str) -> None:
    assert is_inside(path)


@pytest.mark.parametrize(
    "path",
    ["", ".", "..", "../a", "a/../b", "a/..", "./a", "a/./b", "a//b", "a/", "/a", "//a", "C:a", "C:/a", "a\\b", "a\0"],
)
def test_paths_that_lead_elsewhere(path: str) -> None:
    assert not is_inside(path)


def described() -> dict[str, Any]:
    info = PackageRecipe().info()
    stored = {path: StoredFile(1, DIGEST) for path in ("encoder_model.onnx", "decoder_model.onnx")}
    document: dict[str, Any] = json.loads(write_package_document(replace(info, files=stored)))
    return document


def _with_file(path: str) -> Callable[[dict[str, Any]], object]:
    return lambda document: document["files"].update({path: {"bytes": 1, "sha256": DIGEST}})


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no schema version": lambda document: document.pop("schema"),
    "no schema version (saw True)": lambda document: document.update(schema=True),
    "schema 2": lambda document: document.update(schema=2),
    "components is missing": lambda document: document.pop("components"),
    "components is empty": lambda document: document.update(components=[], links=[]),
    "components is 3, not a list": lambda document: document.update(components=3),
    "components[1] is 'x', not an object": lambda document: document["components"].__setitem__(1, "x"),
    "components[0].file is missing": lambda document: document["components"][0].pop("file"),
    "components[0].inputs[0] is 1, not text": lambda document: document["components"][0].update(inputs=[1]),
    "components[1].cache[0].first is '0', not a number": lambda document: document["components"][1]["cache"][0].update(
        {"first": "0"}
    ),
    "components[1].cache[0].first is 1000000": lambda document: document["components"][1]["cache"][0].update(
        {"first": 10**400}
    ),
    "components[1].cache[0].first is nan": lambda document: document["components"][1]["cache"][0].update(
        {"first": float("nan")}
    ),
    "surrogates not allowed": lambda document: document.update(notes=["\ud800"]),
    "components[1].cache[0].past is missing": lambda document: document["components"][1]["cache"][0].pop("past"),
    "component 'decoder' is there twice": lambda document: document["components"][0].update(name="decoder"),
    "'../x' is no name of a component": lambda document: document["components"][0].update(name="../x"),
    "component file 'decoder_model.onnx' is there twice": lambda document: document["components"][0].update(
        file="decoder_model.onnx"
    ),
    "'other.onnx', which is not in files": lambda document: document["components"][0].update(file="other.onnx"),
    "'other.data', which is not in files": lambda document: document["components"][0].update(data=["other.data"]),
    "'nothing', which is none of the inputs of component decoder": lambda document: document["components"][1]["cache"][
        0
    ].update(past="nothing"),
    "'nothing', which is none of the outputs of component decoder": lambda document: document["components"][1]["cache"][
        0
    ].update(present="nothing"),
    "'past_key_values.0.key' is there twice": lambda document: document["components"][1]["cache"][1].update(
        past="past_key_values.0.key"
    ),
    "the component 'unet', which is not there": lambda document: document["links"][0].update(source="unet"),
    "'nothing', which is none of the outputs of component encoder": lambda document: document["links"][0].update(
        output="nothing"
    ),
    "'../secret', which is no path inside": _with_file("../secret"),
    "'/etc/passwd', which is no path inside": _with_file("/etc/passwd"),
    "modelexport.json itself": _with_file("modelexport.json"),
    "bytes is -1": lambda document: document["files"]["encoder_model.onnx"].update(bytes=-1),
    "bytes is True": lambda document: document["files"]["encoder_model.onnx"].update(bytes=True),
    "not 64 hexadecimal digits": lambda document: document["files"]["encoder_model.onnx"].update(sha256="x"),
    "absent[0].parameters is missing": lambda document: document["absent"][0].pop("parameters"),
    "notes is missing": lambda document: document.pop("notes"),
}


@pytest.mark.parametrize("message", DAMAGE)
def test_damage_is_named(message: str) -> None:
    document = described()
    assert parse_package_document(json.dumps(document)).components
    DAMAGE[message](document)
    with pytest.raises(RecordUnreadable) as caught:
        parse_package_document(json.dumps(document), "talker/modelexport.json")
    assert message in caught.value.message
    assert "talker/modelexport.json" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("text", ["", "[]", "{", '{"schema": 1, "schema": 1}', "[" * 100_000, "1" * 10_000, b"\xff"])
def test_what_is_no_document_is_refused(text: str | bytes) -> None:
    with pytest.raises(RecordUnreadable):
        parse_package_document(text)


def test_keys_of_later_versions_are_left_alone() -> None:
    document = described()
    document["shared_weights"] = [1]
    assert parse_package_document(json.dumps(document)) == parse_package_document(json.dumps(described()))


def test_time_is_linear_in_the_number_of_names() -> None:
    """A description from elsewhere may list any number of them: here, pairs times inputs is ten thousand millions."""
    document, count = described(), 100_000
    decoder = document["components"][1]
    decoder["inputs"] = [*decoder["inputs"], *(f"past.{number}" for number in range(count))]
    decoder["outputs"] = [*decoder["outputs"], *(f"present.{number}" for number in range(count))]
    decoder["cache"] = [{"past": f"past.{number}", "present": f"present.{number}"} for number in range(count)]
    text, start = json.dumps(document), time.process_time()
    assert len(parse_package_document(text).components[1].cache) == count
    assert time.process_time() - start < 20
