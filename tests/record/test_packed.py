from __future__ import annotations

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
from modelexport.record.document import from_document, policy_out
from modelexport.record.packed import (
    PACKED_VERSION,
    pack,
    squeeze,
    squeeze_bytes,
    squeeze_bzip2,
    unpack,
    unsqueeze,
)
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.record.tags import TagPolicy

NAME = f"modelexport-record-{PACKED_VERSION}:"
NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear"}, "", "enc", "enc.fc", "enc.fc")
SMALL = provenance(
    model(node("MatMul", "x w", "h", "mm"), node("Relu", "h", "y")),
    NET,
    {"h": ["enc.fc#1"], "y": ["enc.fc", "enc.fc#1"]},
)

# The same, packed by the last version that wrote version 1.
FIRST = (
    "modelexport-record-1:LRx4!F+o`-Q(1-n#9{ye?%#kw01yX!5E7>l3cv5(`al9V1jVZaq|!9WPh>QkRC+)jq3U{#loFZ{l>Je"
    "Y)Y?N6A)v^5K)?e=hKwU7gGQPI1e%c%q}ZZ1r?pQZ41++-j<Q&OJkKU^H?|YKK9Tt@euXDF_oz^a>aocd-&n;{78MtNt)k<)jWvq"
    "~Kflg7>dXV+GANGbDgO`^VMS1-h6;KZ1oo)1k&IY_DHef2dIwHSrcpwr!s3Y$SYejob@<vAQ|1g5HaeH+-83p-e2OT{%porA&yLD"
    "B;lgklL}gR5cO5vKcNs9~XIPh~b##<9QjngBL_@{PS8SOk3m6YIv|(Jd7}p+(0>7fqW^Hh*QLaAR;BalKIX3HW@)1cjQv%D;gMJd"
    "iJ@o3Tv&7aYrb&YaXeh#o6j^rSdKY$#I$v<-{K7*ymF_SVE@{PNla^zuDpkIS*|Poe5+qtOmya{A(w)yF_L77b4U&bu(~Hcc!&k#"
    "d9V9MhyEUQ4!i`#Pp+?)@!`g2$HY-C;X{_5WCw=jn76+gey9sxW8s*!0pm9eUv?5mPxeY0Trmepp(o)Q=wgGXj4%(cpLRL|oa<Ow"
    "MNS-CL<WYt){h^GoTM`LO#jS|PLS(V}X;9L^!jeL+m^$2tOqQE|exbO$ay5U&+>uTcBq4vX7=Q"
)


def wrap(text: bytes) -> str:
    return NAME + squeeze_bytes(text)


def rewrap(record: dict[str, Any]) -> str:
    return NAME + squeeze(record)


def folded(value: Provenance) -> dict[str, Any]:
    found: dict[str, Any] = unsqueeze(pack(value).removeprefix(NAME))
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
    assert unpack(rewrap(older)) == value


def test_a_record_of_version_1_reads_back() -> None:
    """Whole names, no steps, bzip2: as they were written until then."""
    assert unpack(FIRST) == SMALL
    older = {**folded(SMALL), "names": [entry.name for entry in SMALL.nodes.values()]}
    del older["named_by_key"]
    assert unpack(f"modelexport-record-1:{squeeze_bzip2(older)}") == SMALL


@pytest.mark.parametrize(
    ("name", "key"),
    [("node_h", "h"), ("/fc/Gemm", "/fc/Gemm_output_0"), ("h", "h"), ("", "h"), ("\0h", "h"), ("\1", "h")],
)
def test_names_read_back_whatever_they_have_in_common_with_keys(name: str, key: str) -> None:
    value = replace(SMALL, nodes={key: NodeEntry(key, name, "Relu", SMALL.attribution("h"))})
    assert unpack(pack(value)).nodes[key].name == name


def test_a_default_policy_is_that_of_the_version() -> None:
    """Whoever changes a default here makes records of version 2 say something else: raise `PACKED_VERSION`."""
    assert folded(SMALL)["policy"] == {}
    assert policy_out(TagPolicy()) == {
        "scope": "any",
        "torch_nn": "exceptions",
        "torch_nn_exceptions": (
            *("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm"),
            *("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d", "Embedding"),
        ),
        "keep": (),
        "drop": (),
    }
    other = replace(SMALL, policy=TagPolicy(keep=("Linear",)))
    assert folded(other)["policy"] == {"keep": ["Linear"]}
    assert unpack(pack(other)) == other


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
        unpack(rewrap(record))


@given(st.data())
def test_whatever_is_damaged_nothing_else_is_raised(data: st.DataObject) -> None:
    record = folded(SMALL)
    damage_value(record, data)
    try:
        found = unpack(rewrap(record))
    except RecordUnreadable:
        return
    # What was read can be used: tagged and written again.
    assert unpack(pack(found)) == found
