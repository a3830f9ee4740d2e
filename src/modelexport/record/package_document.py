"""Package document: `modelexport.json`, the description of a package, as text and back.

    {"schema": 1, "target": "genai", "model": "./qwen3", "task": "text-generation",
     "components": [{"name": "decoder", "file": "model.onnx", "inputs": ["input_ids", …], "cache": [{"past": …}], …}],
     "links": [], "absent": [], "files": {"model.onnx": {"bytes": 8123, "sha256": "9f8e…"}}, "notes": []}

Reading is strict, because a package comes from anywhere: what is not there or of another kind is an error that says
where, and no path leads out of the folder. Keys that are not known are left for later versions. The schema is
`schema/package.schema.json`, its version `PACKAGE_SCHEMA_VERSION`.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PureWindowsPath
from typing import Any, TypeVar

from modelexport.errors import RecordUnreadable
from modelexport.record.json_reading import parse_json
from modelexport.record.package import (
    PACKAGE_FILE,
    PACKAGE_SCHEMA_VERSION,
    AbsentModule,
    CachePair,
    ComponentInfo,
    ComponentLink,
    PackageInfo,
    StoredFile,
)

Json = dict[str, Any]
_Item = TypeVar("_Item")

_NEXT = "Put the file back as it was written, or export the model again."
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A component's name is a key in results and part of the names of files that verbs write.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_LONGEST_SHOWN = 80


def write_package_document(info: PackageInfo) -> str:
    """The description as text; reading it gives the same value back."""
    document = {
        "schema": PACKAGE_SCHEMA_VERSION,
        "target": info.target,
        "model": info.model,
        "task": info.task,
        "components": [_component_out(component) for component in info.components],
        "links": [
            {"source": link.source, "output": link.output, "target": link.target, "input": link.input}
            for link in info.links
        ],
        "absent": [
            {"path": module.path, "class": module.class_name, "parameters": module.parameters, "reason": module.reason}
            for module in info.absent
        ],
        "files": {path: {"bytes": file.nbytes, "sha256": file.sha256} for path, file in sorted(info.files.items())},
        "notes": list(info.notes),
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _component_out(component: ComponentInfo) -> Json:
    return {
        "name": component.name,
        "file": component.file,
        "inputs": list(component.inputs),
        "outputs": list(component.outputs),
        "cache": [_pair_out(pair) for pair in component.cache],
        "data": list(component.data),
    }


def _pair_out(pair: CachePair) -> Json:
    rare = {"first": pair.first, "window": pair.window}
    return {"past": pair.past, "present": pair.present} | {name: number for name, number in rare.items() if number}


def parse_package_document(text: str | bytes, source: str = PACKAGE_FILE) -> PackageInfo:
    """Read a description back; anything that is not one raises `RecordUnreadable`. `source` names it in messages."""
    try:
        document = parse_json(text, _refuse_duplicates)
    except ValueError as error:
        raise RecordUnreadable(f"{source} is not JSON: {error}", _NEXT) from error
    if not isinstance(document, dict):
        raise RecordUnreadable(f"{source} is not a JSON object", _NEXT)
    _check_version(document.get("schema"), source)
    try:
        info = _info_in(_Reader(document))
        _check_coherent(info)
    except _Damage as damage:
        raise RecordUnreadable(f"{source} is damaged: {damage}", _NEXT) from damage
    return info


def is_inside(path: str) -> bool:
    """Whether a path is one of a file inside of the folder that it is relative to, on every system.

    onnx/model.onnx   yes
    ../model.onnx     no; neither are /model.onnx, C:model.onnx, onnx\\model.onnx, ./model.onnx, and model.onnx/
    """
    if not path or "\\" in path or "\0" in path or PureWindowsPath(path).anchor:
        return False
    # Nor `a//b` or `./a`: two spellings of one file would be two files in the list.
    return not {"", ".", ".."} & {*path.split("/")}


class _Damage(Exception):
    """What is wrong, with its place: `components[0].file is missing`."""


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> Json:
    """JSON's last-one-wins would hide a file behind another entry of the same name."""
    repeated = next((key for key, count in Counter(key for key, _ in pairs).items() if count > 1), None)
    if repeated is not None:
        raise ValueError(f"the key {_shown(repeated)} is there twice")
    return dict(pairs)


def _check_version(version: object, source: str) -> None:
    if type(version) is not int or version < 1:
        raise RecordUnreadable(f"{source} has no schema version (saw {_shown(version)})", _NEXT)
    if version > PACKAGE_SCHEMA_VERSION:
        raise RecordUnreadable(
            f"{source} has schema {version}, this version of modelexport reads up to {PACKAGE_SCHEMA_VERSION}",
            "Update modelexport to read this package.",
        )


@dataclass(frozen=True)
class _Reader:
    """One JSON object, and where it is in the document."""

    document: Any
    location: str = ""

    def text(self, key: str) -> str:
        return self._get(key, str, "text")

    def number(self, key: str, missing: int | None = None) -> int:
        """A whole number, which may be left out if `missing` is given."""
        number = missing if missing is not None and key not in self.document else self._get(key, int, "a number")
        # `True` is an int to Python.
        if isinstance(number, bool) or number < 0:
            raise _Damage(f"{self._at(key)} is {_shown(number)}, not a number from 0")
        return number

    def amount(self, key: str, missing: float) -> float:
        """A number that may be left out; JSON knows neither infinity nor NaN."""
        value = self.document.get(key, missing)
        # A whole number of JSON may have more digits than a float can hold.
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
            raise _Damage(f"{self._at(key)} is {_shown(value)}, not a number")
        return float(value)

    def texts(self, key: str) -> tuple[str, ...]:
        items = self._get(key, list, "a list")
        for index, item in enumerate(items):
            _expect(item, str, "text", f"{self._at(key)}[{index}]")
        return tuple(items)

    def objects(self, key: str, read: Callable[[_Reader], _Item]) -> tuple[_Item, ...]:
        items = self._get(key, list, "a list")
        return tuple(read(_object(item, f"{self._at(key)}[{index}]")) for index, item in enumerate(items))

    def mapping(self, key: str, read: Callable[[_Reader], _Item]) -> dict[str, _Item]:
        items = self._get(key, dict, "an object")
        return {name: read(_object(item, f"{self._at(key)}[{_shown(name)}]")) for name, item in items.items()}

    def _get(self, key: str, kind: type[_Item], expected: str) -> _Item:
        if key not in self.document:
            raise _Damage(f"{self._at(key)} is missing")
        return _expect(self.document[key], kind, expected, self._at(key))

    def _at(self, key: str) -> str:
        return f"{self.location}.{key}" if self.location else key


def _object(value: object, location: str) -> _Reader:
    return _Reader(_expect(value, dict, "an object", location), location)


def _expect(value: object, kind: type[_Item], expected: str, location: str) -> _Item:
    if not isinstance(value, kind):
        raise _Damage(f"{location} is {_shown(value)}, not {expected}")
    return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _info_in(document: _Reader) -> PackageInfo:
    return PackageInfo(
        components=document.objects("components", _component_in),
        target=document.text("target"),
        model=document.text("model"),
        task=document.text("task"),
        links=document.objects("links", _link_in),
        absent=document.objects("absent", _absent_in),
        files=document.mapping("files", _file_in),
        notes=document.texts("notes"),
    )


def _component_in(item: _Reader) -> ComponentInfo:
    return ComponentInfo(
        name=item.text("name"),
        file=item.text("file"),
        inputs=item.texts("inputs"),
        outputs=item.texts("outputs"),
        cache=item.objects("cache", _pair_in),
        data=item.texts("data"),
    )


def _pair_in(item: _Reader) -> CachePair:
    return CachePair(item.text("past"), item.text("present"), item.amount("first", 0.0), item.number("window", 0))


def _link_in(item: _Reader) -> ComponentLink:
    return ComponentLink(item.text("source"), item.text("output"), item.text("target"), item.text("input"))


def _absent_in(item: _Reader) -> AbsentModule:
    return AbsentModule(item.text("path"), item.text("class"), item.number("parameters"), item.text("reason"))


def _file_in(item: _Reader) -> StoredFile:
    sha256 = item.text("sha256")
    if not _SHA256.fullmatch(sha256):
        raise _Damage(f"{item.location}.sha256 is {_shown(sha256)}, not 64 hexadecimal digits")
    return StoredFile(item.number("bytes"), sha256)


def _check_coherent(info: PackageInfo) -> None:
    """Raise where the parts of a description do not fit together."""
    if not info.components:
        raise _Damage("components is empty")
    _refuse_repetition("the component", (component.name for component in info.components))
    _refuse_repetition("the component file", (component.file for component in info.components))
    for path in info.files:
        if not is_inside(path):
            raise _Damage(f"files has {_shown(path)}, which is no path inside of the folder")
    if PACKAGE_FILE in info.files:
        raise _Damage(f"files has {PACKAGE_FILE} itself")
    for component in info.components:
        _check_component(component, info.files)
    # Sets, because a description from elsewhere may list any number of names.
    inputs = {component.name: frozenset(component.inputs) for component in info.components}
    outputs = {component.name: frozenset(component.outputs) for component in info.components}
    for link in info.links:
        _check_end("link", link.source, link.output, outputs, "outputs")
        _check_end("link", link.target, link.input, inputs, "inputs")
    for component in info.components:
        for pair in component.cache:
            _check_end("cache pair", component.name, pair.past, inputs, "inputs")
            _check_end("cache pair", component.name, pair.present, outputs, "outputs")


def _check_component(component: ComponentInfo, files: Mapping[str, StoredFile]) -> None:
    if not _NAME.fullmatch(component.name):
        raise _Damage(f"{_shown(component.name)} is no name of a component: letters, digits, `_`, `-` and `.`")
    for path in (component.file, *component.data):
        if path not in files:
            raise _Damage(f"component {component.name} has the file {_shown(path)}, which is not in files")
    _refuse_repetition(f"an input of component {component.name},", component.inputs)
    _refuse_repetition(f"an output of component {component.name},", component.outputs)
    _refuse_repetition(f"a past of component {component.name},", (pair.past for pair in component.cache))


def _check_end(what: str, name: str, value: str, ends: Mapping[str, frozenset[str]], side: str) -> None:
    """`ends`: by component, the names on that side of it."""
    if name not in ends:
        raise _Damage(f"a {what} names the component {_shown(name)}, which is not there")
    if value not in ends[name]:
        raise _Damage(f"a {what} names {_shown(value)}, which is none of the {side} of component {name}")


def _refuse_repetition(what: str, names: Iterable[str]) -> None:
    repeated = next((name for name, count in Counter(names).items() if count > 1), None)
    if repeated is not None:
        raise _Damage(f"{what} {_shown(repeated)} is there twice")
