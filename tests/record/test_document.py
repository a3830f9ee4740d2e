from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import attribution, damage, model, node, provenance, provenances, to_document, tree

from modelexport.errors import RecordUnreadable, UnknownName
from modelexport.record.document import from_document, write_document
from modelexport.record.packed import pack, unpack
from modelexport.record.provenance import (
    SCHEMA_VERSION,
    Attribution,
    Confidence,
    Evidence,
    EvidenceKind,
    NodeEntry,
    Origin,
    Provenance,
)

NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear"}, "", "enc", "enc.fc", "enc.fc")
SMALL = provenance(
    model(node("MatMul", "x w", "h", "mm"), node("Relu", "h", "y")),
    NET,
    {"h": ["enc.fc#1"], "y": ["enc.fc", "enc.fc#1"]},
)


@given(provenances())
def test_a_document_reads_back(value: Provenance) -> None:
    assert from_document(to_document(value)) == value


@given(provenances())
def test_the_text_is_the_document(value: Provenance) -> None:
    assert json.loads(write_document(value)) == to_document(value)
    assert from_document(json.loads(write_document(value))) == value


def test_the_text_has_one_line_for_each_entry() -> None:
    lines = write_document(SMALL).splitlines()
    assert [line for line in lines if '"key": "h"' in line and '"key": "y"' not in line]


def test_what_a_node_says() -> None:
    first, second = to_document(SMALL)["nodes"]
    assert first == {
        "key": "h",
        "name": "mm",
        "op_type": "MatMul",
        "tag": "/Net/Encoder",
        "ancestor": ["enc.fc", 1],
        "owners": [["enc.fc", 1]],
        "confidence": "exact",
        "evidence": [["scope", "t", ""]],
    }
    assert second["owners"] == [["enc.fc", 0], ["enc.fc", 1]]
    assert second["ancestor"] == ["enc", 0]


def test_what_a_module_says() -> None:
    document = to_document(SMALL)
    encoder = document["modules"][1]
    assert (encoder["path"], encoder["class"], encoder["tag"]) == ("enc", "Encoder", "/Net/Encoder")
    assert document["modules"][2]["tag"] == ""
    assert document["calls"][-1] == {"call": ["enc.fc", 1], "parent": ["enc", 0]}
    assert document["schema"] == SCHEMA_VERSION


def test_an_attribution_without_owner_says_why() -> None:
    unknown = provenance(model(node("Relu", "x", "y")), NET, {})
    (entry,) = to_document(unknown)["nodes"]
    assert entry["reason"] == "nobody knows"
    assert entry["ancestor"] is None
    assert entry["confidence"] == "none"


def test_a_newer_schema_says_so() -> None:
    with pytest.raises(RecordUnreadable, match="schema 99") as caught:
        from_document(to_document(SMALL) | {"schema": 99})
    assert "Update" in caught.value.hint


@pytest.mark.parametrize("document", [None, [], "text", {}, {"schema": "1"}, {"schema": None}, {"schema": 1}])
def test_what_is_no_document_is_refused(document: object) -> None:
    with pytest.raises(RecordUnreadable):
        from_document(document)


@pytest.mark.parametrize("key", ["modules", "calls", "nodes", "initializers", "origin", "policy", "absent"])
def test_no_part_may_be_missing(key: str) -> None:
    document = to_document(SMALL)
    del document[key]
    with pytest.raises(RecordUnreadable):
        from_document(document)


def test_an_endless_call_number_is_refused() -> None:
    document = to_document(SMALL)
    document["nodes"][0]["owners"] = [["enc.fc", float("inf")]]
    with pytest.raises(RecordUnreadable):
        from_document(document)


@given(st.data())
def test_whatever_is_damaged_nothing_else_is_raised(data: st.DataObject) -> None:
    document = copy.deepcopy(to_document(SMALL))
    damage(document, data)
    try:
        found = from_document(document)
    except RecordUnreadable:
        return
    # What was read can be used: tagged and written again.
    assert json.dumps(to_document(found), allow_nan=False)


def test_a_node_is_found_by_name_and_by_key() -> None:
    assert SMALL.entry("mm") is SMALL.entry("h")
    assert SMALL.attribution("mm") == attribution(NET, "enc.fc#1")
    with pytest.raises(UnknownName):
        SMALL.entry("mmm")


ODD_NAMES = ["\0", "\u2028", "a\nb", '"', "\\", "#", "#1", "0", " ", "é" * 300, "</script>", "=1+1"]


@pytest.mark.parametrize("name", ODD_NAMES, ids=ascii)
def test_odd_names_read_back_from_both_forms(name: str) -> None:
    """Of modules, classes, nodes and origins: nothing in a file says what a name may be."""
    hierarchy = tree({"": name, name: "Linear", f"{name}.{name}": name})
    call = hierarchy.calls[-1].call
    answer = Attribution((call,), call, Confidence.EXACT, (Evidence(EvidenceKind.SCOPE, name, name),))
    entry = NodeEntry(name, name, name, answer)
    value = Provenance(hierarchy, {name: entry}, {name: answer}, Origin(name, name, name, name, {name: name}))
    assert from_document(to_document(value)) == value
    assert unpack(pack(value)) == value
    assert write_document(unpack(pack(value))) == write_document(value)
