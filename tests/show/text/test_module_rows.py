from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.graph.module_totals import ModuleAmounts
from modelexport.inspect.analyze import ModuleFacts
from modelexport.show.text import analysis as analysis_view
from modelexport.show.text.analysis import module_rows
from modelexport.show.text.console import as_text, bytes_text, count_text, operators_text, share_text


def module(path: str, class_name: str = "Linear", nodes: int = 1) -> ModuleFacts:
    amounts = ModuleAmounts({"MatMul": nodes} if nodes else {})
    return ModuleFacts(path, class_name, "", 1, amounts, amounts)


def tower(layers: int, parts: int = 6) -> list[ModuleFacts]:
    modules = [module("", "Net"), module("layer", "ModuleList", 0)]
    for layer in range(layers):
        modules.append(module(f"layer.{layer}", "Layer", 0))
        modules += [module(f"layer.{layer}.{'abcdefgh'[part]}") for part in range(parts)]
    return modules


def test_a_small_tree_is_shown_as_it_is() -> None:
    rows = module_rows(tower(2))
    assert [row.label for row in rows[:4]] == ["", "layer", "0", "a"]
    assert [row.guide for row in rows[:4]] == ["", "└ ", "  ├ ", "  │ ├ "]
    assert len(rows) == 16
    assert {row.count for row in rows} == {1}


def test_alike_siblings_become_one_row() -> None:
    rows = module_rows(tower(12))
    assert [(row.label, row.count) for row in rows[:4]] == [("", 1), ("layer", 1), ("[0-11]", 12), ("a", 1)]
    assert len(rows) == 9


def test_a_sibling_that_differs_keeps_its_row() -> None:
    modules = [module(found.path, nodes=9) if found.path == "layer.5.a" else found for found in tower(12)]
    labels = [row.label for row in module_rows(modules)]
    assert [label for label in labels if label[0:1].isdecimal() or label.startswith("[")] == ["[0-4]", "5", "[6-11]"]


def test_a_range_means_no_module_that_is_not_there() -> None:
    """Modules that are left out, or that own nothing, leave gaps in the numbers."""
    missing = {"1", "7"}
    modules = [found for found in tower(12) if missing.isdisjoint(found.path.split(".")[1:2])]
    labels = [(row.label, row.count) for row in module_rows(modules) if row.item.class_name == "Layer"]
    assert labels == [("0", 1), ("[2-6]", 5), ("[8-11]", 4)]


def test_names_that_are_no_places_are_not_counted_on() -> None:
    names = ["9" * 5000, "1" + "0" * 5000, "x1", "x2", *map(str, range(40, 80))]
    labels = [row.label for row in module_rows([module(""), *map(module, names)])]
    assert labels == ["", *names[:4], "[40-79]"]


def test_leaves_beside_deeper_modules_keep_their_guides() -> None:
    rows = module_rows([module(path) for path in ("", "a", "b", "b.c", "b.c.d", "e")])
    assert [row.guide + row.label for row in rows] == ["", "├ a", "├ b", "│ └ c", "│   └ d", "└ e"]


@pytest.mark.parametrize(("most", "shown"), [(0, 2001), (20, 20)])
def test_modules_may_be_nested_deeper_than_functions(most: int, shown: int) -> None:
    modules = [module(".".join("a" * depth)) for depth in range(2001)]
    rows = module_rows(modules, most)
    assert len(rows) == shown
    assert len(rows[-1].guide) == 2 * (shown - 1)
    assert rows[-1].hidden == len(modules) - shown


def test_equal_towers_beside_each_other_are_one_however_high() -> None:
    modules = [module("")]
    for tower_number in range(2):
        modules += [module(".".join([str(tower_number), *("a" * depth)])) for depth in range(1500)]
    rows = module_rows(modules)
    assert [(row.label, row.count) for row in rows[:3]] == [("", 1), ("[0-1]", 2), ("a", 1)]


def test_a_deep_tree_is_cut_and_says_so() -> None:
    modules = [module("", "Net")]
    for name in "abcdefgh":
        modules.append(module(name))
        modules += [module(f"{name}.{part}", nodes=ord(part)) for part in "ijklmnop"]
    rows = module_rows(modules)
    assert len(rows) == 9
    assert rows[1].hidden == 8


def test_a_row_for_every_module_if_asked() -> None:
    assert len(module_rows(tower(12), most=0)) == len(tower(12))


@given(st.integers(0, 30), st.integers(0, 8))
def test_every_module_is_shown_counted_or_hidden(layers: int, parts: int) -> None:
    modules = tower(layers, parts)
    rows = module_rows(modules)
    # A row inside a group stands for as many modules as the group does.
    groups = {row.label: row.count for row in rows if row.count > 1}
    repeat = next(iter(groups.values()), 1)
    grouped_at = next((place for place, row in enumerate(rows) if row.count > 1), len(rows))
    shown = sum(1 for _ in rows[:grouped_at]) + repeat * (len(rows) - grouped_at)
    assert shown + sum(row.hidden for row in rows) == len(modules)


def test_modules_without_their_parents_are_shown_too() -> None:
    rows = module_rows([module("a.b"), module("a.b.c.d")])
    assert [row.label for row in rows] == ["a.b", "c.d"]


def test_numbers_for_people() -> None:
    assert [count_text(number) for number in (0, 999, 1000, 22_713_216, 999_999)] == [
        "0",
        "999",
        "1.0K",
        "22.7M",
        "1.0M",
    ]
    assert [bytes_text(number) for number in (12, 90_868_376)] == ["12 B", "90.9 MB"]
    assert [share_text(share) for share in (0, 0.0001, 0.5, 0.9999, 1)] == [
        "0.0 %",
        "<0.1 %",
        "50.0 %",
        ">99.9 %",
        "100.0 %",
    ]
    assert operators_text({"Add": 1, "MatMul": 3, "Relu": 1}, 2) == "MatMul 3, Add, +1 more"


def test_siblings_with_other_totals_are_not_one_row() -> None:
    """What is inside of them is alike, but a node that modules inside share counts for the module around them."""
    modules = [
        replace(item, total=replace(item.total, op_types={"MatMul": 45})) if item.path == "layer.3" else item
        for item in tower(12)
    ]
    rows = [row for row in module_rows(modules) if row.item.class_name == "Layer"]
    assert [(row.label, row.count, row.item.total.nodes) for row in rows] == [
        ("[0-2]", 3, 0),
        ("3", 1, 45),
        ("[4-11]", 8, 0),
    ]


def test_many_siblings_are_grouped_in_time_that_grows_with_them() -> None:
    """A group that is made again with each sibling copies its names each time: 20,000 of them took four seconds."""
    count = 20_000
    before = time.process_time()
    module_rows(tower(count // 10, 0))
    one = time.process_time() - before
    before = time.process_time()
    rows = module_rows(tower(count, 0))
    assert [(row.label, row.count) for row in rows] == [("", 1), ("layer", 1), (f"[0-{count - 1}]", count)]
    assert time.process_time() - before < 40 * max(one, 0.02)


def test_a_table_that_nobody_would_read_is_cut_and_says_so() -> None:
    modules = (module(""), *(module(f"part_{number}") for number in range(5000)))
    analysis = SimpleNamespace(modules=modules)
    short = as_text([analysis_view._modules(analysis, detailed=False)]).splitlines()  # type: ignore[arg-type]
    assert len(short) < 1100
    assert short[-1].startswith("… 4,001 more")
    full = as_text([analysis_view._modules(analysis, detailed=True)])  # type: ignore[arg-type]
    assert all(f"part_{number} " in full for number in range(5000))
    assert " more" not in full
