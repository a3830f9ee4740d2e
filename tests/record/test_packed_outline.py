from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import attribution, body, model, node, provenance, tree, weight
from tests.support.building import damage as damage_value
from tests.support.graphs import models

from modelexport.errors import RecordUnreadable
from modelexport.graph.index import index_model
from modelexport.graph.outline import graph_of, outlined
from modelexport.record import limits
from modelexport.record.outline import PLACES, Outline, Sketch, pack_outline, unpack_outline
from modelexport.record.packed import squeeze, squeeze_bytes, unsqueeze
from modelexport.record.provenance import Provenance

NAME = "modelexport-outline-2:"
NET = tree({"": "Net"})
SKETCH = Sketch((64, 64), 0.5, 1.0, tuple(range(PLACES)))


def record_of(proto: onnx.ModelProto, initializers: bool = True) -> Provenance:
    names = index_model(proto).initializers if initializers else {}
    return replace(provenance(proto, NET, {}), initializers=dict.fromkeys(names, attribution(NET)))


def outline_of(proto: onnx.ModelProto) -> Outline:
    return outlined(index_model(proto), lambda _: SKETCH)


def branching() -> onnx.ModelProto:
    """Bodies, a left-out input, a node with two results, weights with and without content."""
    return model(
        node("Clip", "x _ limit", "c"),
        node("Split", "c", "a b"),
        node("Dropout", "c", "_ mask"),
        node("If", "x", "d", then_branch=body(node("MatMul", "a w", "in"), outputs="in")),
        node("Loop", "_ _ d", "e", body=body(node("Neg", "s", "t"), inputs="i k s", outputs="k t")),
        node("Add", "e b", "y"),
        weights=["w", weight("limit", 6)],
    )


SMALL = branching()
RECORD = record_of(SMALL)
PACKED = pack_outline(outline_of(SMALL), RECORD)

# The same, packed by the last version that wrote version 1.
FIRST = (
    "modelexport-outline-1:LRx4!F+o`-Q(3|$KJfqnO`m`gCVwyp0)Ps>@7{kf0d1vVB{fe|CaL;U%?&8gwKM?2dV^E-2?ziNgK7"
    "W(BuFNy;*5rYqXvK`X2R8R+t7WyHovMZGDcJB_`_O~<oBfgI9c`2D&hlSng|<XL@*%IYc?3P*tf(mXZwbea8$2b$t6K8f^jEwMB-"
    "2x%AML3mw-keFtdcvHVL+w+|x_Rq8g(N1`#ci2Pji4&)OA>iq9g%iIqUN7#Eo(R>lLmB*P&xdaDK*u`oG|$WF$I)b31mY^|jnoFk"
    "N(x2m1Q6{BBUvP8Rq$zEb$=os4FW<!7wdoi@TQyiMnZ)6N@Uvn7jL-e>E)n4&;y(BFoNE0m0i0>^0O0t6{wb1r*xq||YA}3T+E1P"
    "mILS}AFJhgWSEeR4=I^e})rJ{ppp!bM@GYcqPse}b92JWfP04t(mEycbK&Cl_7BvXY63?gIi5C"
)


def wrap(text: bytes) -> str:
    return NAME + squeeze_bytes(text)


def rewrap(outline: dict[str, Any]) -> str:
    return NAME + squeeze(outline)


def folded() -> dict[str, Any]:
    found: dict[str, Any] = unsqueeze(PACKED.removeprefix(NAME))
    return found


def test_an_outline_of_version_1_reads_back() -> None:
    assert unpack_outline(FIRST, RECORD) == unpack_outline(PACKED, RECORD) == outline_of(SMALL)


@given(models(), st.booleans())
def test_a_packed_outline_reads_back(proto: onnx.ModelProto, told: bool) -> None:
    record, outline = record_of(proto, told), outline_of(proto)
    assert unpack_outline(pack_outline(outline, record), record) == outline


def test_everything_that_a_graph_can_hold_reads_back() -> None:
    outline = outline_of(SMALL)
    assert unpack_outline(PACKED, RECORD) == outline
    assert set(outline.bodies) == {"d|then_branch", "e|body"}
    assert outline.bodies["e|body"].takes == ("e|body|i", "e|body|k", "e|body|s")
    assert set(outline.sketches) == {"w", "limit"}


def test_a_record_that_knows_initializers_of_another_graph_is_no_obstacle() -> None:
    plain = model(node("Relu", "x", "y"))
    record = replace(record_of(plain), initializers={"w": attribution(NET)})
    assert unpack_outline(pack_outline(outline_of(plain), record), record) == outline_of(plain)


def test_a_sketch_reads_back_to_the_digits_that_are_kept() -> None:
    sketch = Sketch((8, 16), 0.30078125, 100.0, (-127, 127, 0, 1, -1, 64, -64, 3))
    outline = outlined(index_model(SMALL), lambda name: sketch if name == "w" else None)
    assert unpack_outline(pack_outline(outline, RECORD), RECORD).sketches == {"w": sketch}


def test_packing_is_repeatable_text() -> None:
    assert pack_outline(outline_of(SMALL), RECORD) == PACKED
    assert PACKED.startswith(NAME)
    assert PACKED.isascii()


def test_layers_that_repeat_take_next_to_nothing() -> None:
    layers = [
        one
        for place in range(500)
        for one in (node("MatMul", f"v{place} w{place}", f"h{place}"), node("Relu", f"h{place}", f"v{place + 1}"))
    ]
    long = model(*layers, inputs="v0", outputs="v500", weights=[f"w{place}" for place in range(500)])
    outline = outlined(index_model(long), lambda _: None)
    assert len(pack_outline(outline, record_of(long))) < len(layers)


@pytest.mark.parametrize("version", ["3", "99", "9" * 5000, "", "x"])
def test_another_schema_says_so(version: str) -> None:
    with pytest.raises(RecordUnreadable, match="another version") as caught:
        unpack_outline(PACKED.replace(NAME, f"modelexport-outline-{version}:"), RECORD)
    assert "Update modelexport" in caught.value.hint


@pytest.mark.parametrize("text", ["", ":", "text", "modelexport-outline", "modelexport-record-1:abc"])
def test_what_is_no_outline_is_refused(text: str) -> None:
    with pytest.raises(RecordUnreadable):
        unpack_outline(text, RECORD)


@given(st.integers(0, 100_000))
def test_a_truncated_outline_is_refused(length: int) -> None:
    with pytest.raises(RecordUnreadable):
        unpack_outline(PACKED[: length % len(PACKED)], RECORD)


@given(st.text(max_size=40))
def test_a_payload_of_anything_is_refused(payload: str) -> None:
    with pytest.raises(RecordUnreadable):
        unpack_outline(NAME + payload, RECORD)


@given(st.binary(max_size=40))
def test_compressed_rubbish_is_refused(text: bytes) -> None:
    with pytest.raises(RecordUnreadable):
        unpack_outline(wrap(text), RECORD)


@given(st.integers(0, 100_000), st.sampled_from("0Zz~|é\0"))
def test_one_wrong_character_is_noticed_or_harmless(place: int, other: str) -> None:
    place = len(NAME) + place % (len(PACKED) - len(NAME))
    with suppress(RecordUnreadable):
        assert unpack_outline(PACKED[:place] + other + PACKED[place + 1 :], RECORD) == outline_of(SMALL)


def test_nesting_without_end_is_refused() -> None:
    with pytest.raises(RecordUnreadable):
        unpack_outline(wrap(b"[" * 200_000), RECORD)


def test_a_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_BYTES", 1 << 16)
    with pytest.raises(RecordUnreadable, match="more than 65536 bytes"):
        unpack_outline(wrap(b" " * (1 << 17)), RECORD)


def _set(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda outline: outline.update({key: value})


DAMAGES: dict[str, Callable[[dict[str, Any]], None]] = {
    "a column too short": lambda outline: outline["domains"].pop(),
    "an arity too many": lambda outline: outline["arities"].append(1),
    "an input from before the first": lambda outline: outline["reads"].__setitem__(0, -999),
    "an input that is made after the last": lambda outline: outline["reads"].__setitem__(-1, 99_999),
    "fewer inputs than nodes have": lambda outline: outline["reads"].clear(),
    "more inputs than nodes have": lambda outline: outline["reads"].append(1),
    "an endless input": lambda outline: outline["reads"].__setitem__(0, float("inf")),
    "half an input": lambda outline: outline["reads"].__setitem__(0, 1.5),
    "an arity below zero": lambda outline: outline["arities"].__setitem__(0, -1),
    "a domain of no number": lambda outline: outline["domains"].__setitem__(0, 7),
    "a shape of no number": lambda outline: outline["shapes"].__setitem__(0, 7),
    "results of a node that there is not": lambda outline: outline["made"].update({"999": ["z"]}),
    "results of a node that is no number": lambda outline: outline["made"].update({"a": ["z"]}),
    "results that are numbers": lambda outline: outline["made"].update({"0": [1]}),
    "a body of two parts": lambda outline: outline["bodies"].update({"d|then_branch": ["d", []]}),
    "a body that is owned by nobody": lambda outline: outline["bodies"].update({"d|then_branch": ["?", [], []]}),
    "no bodies at all": _set("bodies", {}),
    "a node in a body that there is not": lambda outline: outline["graph_table"].__setitem__(-1, "nowhere"),
    "an initializer too few": lambda outline: outline["dtypes"].pop(),
    "initializers that are numbers": _set("initializers", [1, 2]),
    "sketches cut short": lambda outline: outline["sketches"].__setitem__(1, outline["sketches"][1][:-5]),
    "a sketch of no constant": lambda outline: outline["sketches"][0].__setitem__(0, 99_999),
    "a sketch counted from behind": lambda outline: outline["sketches"][0].__setitem__(0, -1),
    "sides that are text": lambda outline: outline["sketches"].__setitem__(3, ["ab"]),
    "sketches of three parts": lambda outline: outline["sketches"].pop(),
    "a number": _set("made", 7),
    "no inputs": lambda outline: outline.pop("inputs"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_outline_that_contradicts_itself_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    outline = folded()
    damage(outline)
    with pytest.raises(RecordUnreadable, match="damaged"):
        unpack_outline(rewrap(outline), RECORD)


def test_the_outline_of_another_record_is_refused() -> None:
    other = record_of(model(node("Relu", "x", "y")))
    with pytest.raises(RecordUnreadable, match="damaged"):
        unpack_outline(PACKED, other)


@given(st.data())
def test_whatever_is_damaged_nothing_else_is_raised(data: st.DataObject) -> None:
    outline = folded()
    damage_value(outline, data)
    try:
        found = unpack_outline(rewrap(outline), RECORD)
    except RecordUnreadable:
        return
    # What was read can be used: as a graph, and written again.
    made = graph_of(found)
    _ = made.computed, made.fingerprint, made.callers, [list(made.successors(one)) for one in made.nodes]
    assert unpack_outline(pack_outline(found, RECORD), RECORD) == found
