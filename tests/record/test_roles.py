"""Roles and layers in a record: written where there are any, and read back."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import model, node, provenance, provenances, to_document, tree

from modelexport.errors import RecordUnreadable
from modelexport.record.document import from_document
from modelexport.record.packed import pack, squeeze, unpack, unsqueeze
from modelexport.record.provenance import Attribution, Provenance

NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear"}, "", "enc", "enc.fc", "enc.fc")
BARE = provenance(
    model(node("MatMul", "x w", "h", "mm"), node("Relu", "h", "y")), NET, {"h": ["enc.fc"], "y": ["enc.fc"]}
)

ROLES = st.sampled_from(["", "norm", "attention.query", "é"])
NUMBERS = st.none() | st.integers(0, 100)


@st.composite
def with_roles(draw: st.DrawFn) -> Provenance:
    def fill(attribution: Attribution) -> Attribution:
        return replace(attribution, role=draw(ROLES), layer_id=draw(NUMBERS))

    bare = draw(provenances())
    nodes = {key: replace(entry, attribution=fill(entry.attribution)) for key, entry in bare.nodes.items()}
    return replace(bare, nodes=nodes, initializers={name: fill(item) for name, item in bare.initializers.items()})


def named(role: str, layer: int | None) -> Provenance:
    entry = BARE.nodes["h"]
    changed = replace(entry, attribution=replace(entry.attribution, role=role, layer_id=layer))
    return replace(BARE, nodes={**BARE.nodes, "h": changed}, initializers={"w": changed.attribution})


@given(with_roles())
def test_roles_and_layers_read_back(value: Provenance) -> None:
    assert from_document(to_document(value)) == value
    assert unpack(pack(value)) == value


def test_what_is_known_is_said() -> None:
    first, second = to_document(named("attention.query", 3))["nodes"]
    assert (first["role"], first["layer"]) == ("attention.query", 3)
    assert not {"role", "layer"} & second.keys()
    assert to_document(named("", 0))["nodes"][0]["layer"] == 0


@pytest.mark.parametrize("layer", [-1, "1", 1.5, []])
def test_a_layer_is_a_number(layer: object) -> None:
    document = to_document(named("norm", 1))
    document["nodes"][0]["layer"] = layer
    with pytest.raises(RecordUnreadable):
        from_document(document)


def folded(value: Provenance) -> tuple[str, dict[str, Any]]:
    name, _, payload = pack(value).partition(":")
    return name, unsqueeze(payload)


def wrapped(name: str, record: dict[str, Any]) -> str:
    return f"{name}:{squeeze(record)}"


def test_a_role_is_written_once() -> None:
    many = [node("Relu", f"v{place}", f"v{place + 1}") for place in range(500)]
    long = provenance(model(*many, inputs="v0"), NET, {f"v{place}": ["enc.fc"] for place in range(1, 501)})
    filled = {
        key: replace(entry, attribution=replace(entry.attribution, role="norm" if place % 2 else "residual"))
        for place, (key, entry) in enumerate(long.nodes.items())
    }
    name, record = folded(replace(long, nodes=filled))
    assert sorted(record["role_table"]) == ["norm", "residual"]
    # Roles do not multiply the answers that they are given beside.
    assert len(record["answer_table"]) == 1
    assert name in pack(long)


def test_a_record_from_before_there_were_roles_reads() -> None:
    name, record = folded(BARE)
    for key in ("roles", "weight_roles", "role_table"):
        del record[key]
    record["answer_table"] = [answer[:5] for answer in record["answer_table"]]
    assert unpack(wrapped(name, record)) == BARE


@pytest.mark.parametrize(("key", "value"), [("roles", [0]), ("roles", [0, 9]), ("role_table", [7, 7])])
def test_columns_that_do_not_fit_are_refused(key: str, value: object) -> None:
    name, record = folded(named("norm", 1))
    record[key] = value
    with pytest.raises(RecordUnreadable):
        unpack(wrapped(name, record))


@given(with_roles())
def test_the_schema_describes_them(value: Provenance) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from importlib import resources

    text = (resources.files("modelexport.record") / "schema" / "hierarchy.schema.json").read_text(encoding="utf-8")
    nodes = json.loads(text)["properties"]["nodes"]["items"]["properties"]
    for entry in to_document(value)["nodes"]:
        for key in ("role", "layer"):
            if key in entry:
                jsonschema.validate(entry[key], nodes[key])
