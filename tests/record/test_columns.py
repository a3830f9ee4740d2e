from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.building import damage as damage_value

from modelexport.record import limits
from modelexport.record.columns import fold_columns, unfold_columns
from modelexport.record.document import DAMAGE

ATOMS = st.none() | st.booleans() | st.integers(-5, 20) | st.text("ab_019/.\x00é", max_size=8)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text("ab", max_size=2), inner, max_size=3)
)
NAMES = st.lists(st.from_regex(r"[a-z]{0,2}_?[0-9]{0,3}[a-z]?[0-9]{0,2}", fullmatch=True), max_size=20)


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@given(VALUES | NAMES | st.lists(st.integers()) | st.lists(st.tuples(st.integers(0, 3), NAMES)))
def test_what_is_written_reads_back(value: Any) -> None:
    again = unfold_columns(through_json(fold_columns(value)))
    assert json.dumps(again) == json.dumps(value)


@given(st.lists(st.integers(0, 5)))
def test_parents_in_a_tree_read_back(up: list[int]) -> None:
    parents: list[int] = []
    for index, steps in enumerate(up):
        parent = index - 1
        for _ in range(steps if index else 0):
            parent = parents[parent] if parent > 0 else parent
        parents.append(parent)
    assert unfold_columns(through_json(fold_columns(parents))) == parents


@pytest.mark.parametrize(
    ("value", "folded"),
    [
        (
            ["linear_6", "linear_12", "linear_18", "linear_24"],
            {"texts": [[["linear_", ""]], {"same": [0, 4]}, [6] * 4]},
        ),
        ([8, 4, 12, 8, 16, 12, 20, 16], {"steps": [8, -4, 8, -4, 8, -4, 8, -4]}),
        ([5, 6, 7, 8, 9, 10, 8, 9], {"back": [-5, -5, -5, -5, -5, -5, -2, -2]}),
        ([-1, 0, 1, 1, 1, 1, 0, 6, 6, 0, 9, 0, 11], {"depths": [0, 1, 2, 2, 2, 2, 1, 2, 2, 1, 2, 1, 2]}),
        ([0, 1, 2, 0, 3, 4, 2, 5], {"first": [0, 0, 0, 3, 0, 0, 3, 0]}),
        ([[1, "a"], [5, "b"], [9, "c"], [13, "d"]], {"columns": [{"steps": [1, 4, 4, 4]}, ["a", "b", "c", "d"]]}),
        ([7, 7, 7, 7], {"same": [7, 4]}),
        (["", "", "", ""], {"same": ["", 4]}),
        (["a", "a", "b", "a"], {"table": [["a", "b"], [0, 0, 1, 0]]}),
        (["007", "008", "009", "010"], ["007", "008", "009", "010"]),
        ({"a": 1}, {"plain": {"a": 1}}),
    ],
)
def test_what_repeats_is_found(value: Any, folded: Any) -> None:
    assert fold_columns(value) == folded


def test_layers_are_the_same_bytes() -> None:
    layers = [
        name for layer in range(0, 200, 2) for name in (f"add_{7 * layer}", f"linear_{layer}", f"linear_{layer + 1}")
    ]
    templates, which, steps = fold_columns(layers)["texts"]
    assert len(templates) == 2
    assert set(steps[3:]) == {14, 1}
    assert len(unfold_columns(which)) == len(layers)


@pytest.mark.parametrize(
    "bomb",
    [
        {"texts": [[["a" * 1000]], [0] * 1000, []]},
        {"table": [["a" * 1000], [0] * 1000]},
        {"table": [[["a"] * 300], [0] * 1000]},
        {"same": [0, 10**12]},
        {"same": ["a" * 1000, 1000]},
        {"plain": {str(key): {"table": [["a" * 1000], [0] * 10]} for key in range(100)}},
    ],
)
def test_a_bomb_is_refused(bomb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "RECORD_BYTES", 1 << 16)
    with pytest.raises(ValueError, match="more than 65536 bytes"):
        unfold_columns(bomb)


@pytest.mark.parametrize(
    "coded",
    [
        {"table": [["a"], [-1]]},
        {"table": [["a"], [1]]},
        {"texts": [[["a", ""]], [0], [-1]]},
        {"texts": [[["a", ""]], [0], [10**9]]},
        {"texts": [[["a"]], [-1], []]},
        {"texts": [[["a", ""]], [0, 0], [1]]},
        {"lengths": [[1, 2], [1]]},
        {"lengths": [[-1, 2], [1]]},
        {"columns": [[1], [1, 2]]},
        {"same": [0, -1]},
        {"same": [[0], 2]},
        {"same": [0, "2"]},
        {"depths": [0, 2]},
        {"depths": [-1]},
        {"steps": [1], "back": [1]},
        {"unknown": []},
        {},
    ],
)
def test_what_was_not_written_so_is_refused(coded: Any) -> None:
    with pytest.raises(DAMAGE):
        unfold_columns(coded)


@given(st.data())
def test_whatever_is_damaged_nothing_else_is_raised(data: st.DataObject) -> None:
    coded = through_json(
        fold_columns({"names": [f"a_{index}" for index in range(6)], "rows": [[1, "b"], [2, "b"]] * 3})
    )
    damage_value(coded, data)
    try:
        unfold_columns(coded)
    except DAMAGE:
        return


def test_the_reader_in_the_documentation_reads_the_same() -> None:
    page = (Path(__file__).parents[2] / "docs" / "record.md").read_text(encoding="utf-8")
    code, _, _ = page[page.index("import base64, json, lzma, onnx") :].partition("model = onnx.load(")
    names: dict[str, Any] = {}
    exec(code, names)
    parents = [-1, 0, 1, 1, 1, 1, 0, 6, 6, 0, 9, 0, 11]
    value = {
        "names": [f"a_{index}" for index in range(6)] + ["b"] * 6,
        "rows": [[index, [str(index)] * (index % 3), {"x": index // 2}] for index in range(9)],
        "parents": parents,
        "words": ["dense", "query", "dense", "dense"],
        "numbers": [[3, 4, 5, 6, 7, 7], [0, 1, 2, 0, 3, 4, 2, 5], [8, 4, 12, 8, 16, 12, 20, 16]],
    }
    coded = through_json(fold_columns(value))
    ways = {name for name in names["WAYS"] if f'"{name}"' in json.dumps(coded)}
    assert ways == {"plain", "steps", "back", "first", "depths", "columns", "lengths", "table", "texts", "same"}
    assert names["unfold"](coded) == unfold_columns(coded) == value
