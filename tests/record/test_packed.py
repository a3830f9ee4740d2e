from __future__ import annotations

import base64
import bz2
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import damage as damage_value
from tests.support.building import model, node, provenance, provenances, to_document, tree

from modelexport.errors import RecordUnreadable
from modelexport.record import limits
from modelexport.record.document import from_document
from modelexport.record.packed import pack, unpack
from modelexport.record.provenance import SCHEMA_VERSION, Provenance

NAME = f"modelexport-record-{SCHEMA_VERSION}:"
NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear"}, "", "enc", "enc.fc", "enc.fc")
SMALL = provenance(
    model(node("MatMul", "x w", "h", "mm"), node("Relu", "h", "y")),
    NET,
    {"h": ["enc.fc#1"], "y": ["enc.fc", "enc.fc#1"]},
)


def wrap(text: bytes) -> str:
    return NAME + base64.b85encode(bz2.compress(text)).decode()


def folded(value: Provenance) -> dict[str, Any]:
    payload = base64.b85decode(pack(value).removeprefix(NAME))
    found: dict[str, Any] = json.loads(bz2.decompress(payload))
    return found


@given(provenances())
def test_a_packed_record_reads_back(value: Provenance) -> None:
    assert unpack(pack(value)) == value


def test_what_went_through_a_call_reads_back_and_may_be_missing() -> None:
    through = [None, 3, None, 0]
    sites = [replace(site, through=axes) for site, axes in zip(NET.calls, through, strict=True)]
    value = replace(SMALL, hierarchy=replace(NET, calls=tuple(sites)))
    assert [site.through for site in unpack(pack(value)).hierarchy.calls] == through
    assert [site.through for site in from_document(to_document(value)).hierarchy.calls] == through
    older = folded(value)
    del older["through"]
    assert unpack(wrap(json.dumps(older).encode())) == value


def test_packing_is_repeatable_text() -> None:
    assert pack(SMALL) == pack(SMALL)
    assert pack(SMALL).startswith(NAME)
    assert pack(SMALL).isascii()


def test_tags_read_back_though_they_are_not_written() -> None:
    again = unpack(pack(SMALL))
    assert again.tag(again.attribution("h")) == "/Net/Encoder"
    assert "/Net" not in json.dumps(folded(SMALL))


def test_what_repeats_is_written_once() -> None:
    nodes = [node("Relu", f"v{place}", f"v{place + 1}") for place in range(2000)]
    long = provenance(model(*nodes, inputs="v0"), NET, {f"v{place}": ["enc.fc"] for place in range(1, 2001)})
    assert len(folded(long)["answer_table"]) == 1
    assert len(pack(long)) < 4 * len(nodes)


@pytest.mark.parametrize("text", ["", ":", "text", "modelexport-record", "modelexport-record-:", "other-1:abc"])
def test_what_is_no_record_is_refused(text: str) -> None:
    with pytest.raises(RecordUnreadable):
        unpack(text)


@pytest.mark.parametrize("version", ["99", "9" * 5000])
def test_a_newer_schema_says_so(version: str) -> None:
    with pytest.raises(RecordUnreadable, match="schema 99") as caught:
        unpack(pack(SMALL).replace(NAME, f"modelexport-record-{version}:"))
    assert "Update" in caught.value.hint


@given(st.integers(0, 10_000))
def test_a_truncated_record_is_refused(length: int) -> None:
    text = pack(SMALL)
    with pytest.raises(RecordUnreadable):
        unpack(text[: length % len(text)])


@given(st.text(max_size=40))
def test_a_payload_of_anything_is_refused(payload: str) -> None:
    with pytest.raises(RecordUnreadable):
        unpack(NAME + payload)


@given(st.binary(max_size=40))
def test_compressed_rubbish_is_refused(text: bytes) -> None:
    with pytest.raises(RecordUnreadable):
        unpack(wrap(text))


@given(st.integers(0, 10_000), st.sampled_from("0Zz~|"))
def test_one_wrong_character_is_noticed_or_harmless(place: int, other: str) -> None:
    text = pack(SMALL)
    place = len(NAME) + place % (len(text) - len(NAME))
    with suppress(RecordUnreadable):
        assert unpack(text[:place] + other + text[place + 1 :]) == SMALL


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(RecordUnreadable):
        unpack(wrap(b"[" * 200_000))


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_BYTES", 1 << 16)
    with pytest.raises(RecordUnreadable, match="more than 65536 bytes"):
        unpack(wrap(b" " * (1 << 17)))


def _set(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda record: record.update({key: value})


DAMAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a key too many": lambda record: record["keys"].append("more"),
    "an operator of no number": _set("operators", [0, 9]),
    "an answer of no number": _set("answers", [0, 9]),
    "no module": lambda record: record["modules"].update(parents=[], names=[], rows=[]),
    "a parent of no number": lambda record: record["modules"].update(parents=[9, 9, 9]),
    "a call of no module": _set("calls", [[9], [0]]),
    "a call from nowhere": _set("calls", [[0, 1], [0, -7]]),
    "columns of calls": _set("calls", [[0], [0], [0]]),
    "an endless call number": lambda record: record["answer_table"][0].__setitem__(0, [[1, float("inf")]]),
    "no policy": lambda record: record.pop("policy"),
    "an unknown confidence": lambda record: record["answer_table"][0].__setitem__(1, "certain"),
    "an unknown evidence": lambda record: record["answer_table"][0].__setitem__(2, [["hearsay", "", ""]]),
    "a number": _set("modules", 7),
    "a key that is a number": _set("keys", [1, 2]),
    "a reason that is a list": _set("absent", [["enc"], [[]]]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_record_that_contradicts_itself_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    record = folded(SMALL)
    damage(record)
    with pytest.raises(RecordUnreadable):
        unpack(wrap(json.dumps(record).encode()))


@given(st.data())
def test_whatever_is_damaged_nothing_else_is_raised(data: st.DataObject) -> None:
    record = folded(SMALL)
    damage_value(record, data)
    try:
        found = unpack(wrap(json.dumps(record).encode()))
    except RecordUnreadable:
        return
    # What was read can be used: tagged and written again.
    assert unpack(pack(found)) == found
