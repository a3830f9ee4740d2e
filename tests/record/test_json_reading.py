"""JSON from strangers: whatever is wrong with it is a ValueError, in bounded time and memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from modelexport.errors import FileUnreadable, InputError, ModelUnloadable, RecordUnreadable, UserError
from modelexport.record import json_reading
from modelexport.record.hierarchy import Hierarchy
from modelexport.record.json_reading import parse_json, read_json

_DEEP = {
    "lists": "[" * 50_000,
    "closed lists": "[" * 50_000 + "]" * 50_000,
    "objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "mixed, within what Python's parser takes": '[{"a":' * 100 + "1" + "}]" * 100,
}


@pytest.mark.parametrize("text", _DEEP.values(), ids=_DEEP)
def test_deep_nesting_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="nested more than 64 levels deep"):
        parse_json(text)


def test_usual_documents_are_read() -> None:
    assert parse_json('{"a": [{"b": [1, 2.5, null]}]}') == {"a": [{"b": [1, 2.5, None]}]}
    assert parse_json(b"[" * 64 + b"]" * 64)
    assert parse_json('{"a": 1, "a": 2}', object_pairs_hook=list) == [("a", 1), ("a", 2)]


@pytest.mark.parametrize(
    "text",
    [
        '"\\ud800"',
        '{"a\\uDC00": 1}',
        '[{"a": ["x\\udbffy"]}]',
        '"\ud800"',
        b'"\xed\xa0\x80"',
        '"\\ud800"'.encode("utf-16"),
    ],
    ids=["value", "key", "inside", "text", "bytes", "UTF-16"],
)
def test_half_of_a_surrogate_pair_is_no_text(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="surrogates not allowed"):
        parse_json(text)
    with pytest.raises(ValueError, match="surrogates not allowed"):
        parse_json(text, object_pairs_hook=dict)


def test_whole_pairs_are_read() -> None:
    assert parse_json('{"\\ud83d\\ude00": ["ä", "\\\\ud800"]}') == {"\U0001f600": ["ä", "\\ud800"]}


def test_a_large_document_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_reading, "_LARGEST", 1 << 20)
    path = tmp_path / "large.json"
    path.write_text("[" + "0," * (1 << 20) + "0]")
    with pytest.raises(ValueError, match="larger than 1 MB"):
        read_json(path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(OSError, match="regular file"):
        read_json(tmp_path / "pipe.json")


def test_every_reader_of_json_says_what_is_wrong(tmp_path: Path) -> None:
    """Sidecars, overlays, packages, configurations, specs: a line that the user can act on."""
    from modelexport.api.attach_package import _read_genai_files
    from modelexport.capture.inputs.specs import read_specs_file
    from modelexport.capture.loading.pretrained import read_config
    from modelexport.graph.file.context import find_context
    from modelexport.graph.file.tagged_file import read_sidecar
    from modelexport.record.package_document import parse_package_document
    from modelexport.show.data.overlays import read_overlay

    for name in ("genai_config.json", "config.json"):
        (tmp_path / name).write_text(_DEEP["lists"])
    path = tmp_path / "config.json"
    empty = Hierarchy({}, ())
    readers: list[tuple[Callable[[], object], type[UserError]]] = [
        (lambda: read_specs_file(path), InputError),
        (lambda: read_config(path), ModelUnloadable),
        (lambda: read_sidecar(path), RecordUnreadable),
        (lambda: parse_package_document(path.read_text()), RecordUnreadable),
        (lambda: read_overlay(path, empty), FileUnreadable),
        (lambda: _read_genai_files(tmp_path), UserError),
    ]
    for read, expected in readers:
        with pytest.raises(expected, match="nested more than"):
            read()
    assert find_context(tmp_path) is None  # nothing is learned from it
