"""A profile as a trace, a table and a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from tests.building import tree
from tests.profiles import RUNS, credited, profiled, profiles
from tests.verifying import EVIL

from modelexport.record.profile import KernelEvent, Profile
from modelexport.record.provenance import NodeEntry, Origin, Provenance
from modelexport.views.console import as_text
from modelexport.views.profile_data import MODULE_COLUMNS, profile_csv
from modelexport.views.profile_tables import profile_tables, time_text
from modelexport.views.profile_trace import profile_trace

NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear", "enc.act": "ReLU", "head": "Linear"})
OWNERS = {"a": ("enc.fc",), "b": ("enc.fc", "enc.act"), "c": ("head",), "d": (), "e": ("enc.act",)}
DURATIONS = {"a": [10.0, 20.0, 30.0], "b": [5.0, 5.0, 5.0], "c": [1.0, 1.0, 1.0], "d": [2.0, 2.0, 2.0], "e": [0.0] * 3}


def small() -> Profile:
    entries = {key: NodeEntry(key, f"node_{key}", "MatMul", credited(NET, *paths)) for key, paths in OWNERS.items()}
    return profiled(
        Provenance(NET, entries, {}, Origin("test", "test")), DURATIONS, dict.fromkeys(OWNERS, "CPUExecutionProvider")
    )


def bars(profile: Profile) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The complete events of a trace, and the names of its lanes."""
    document = json.loads(profile_trace(profile))
    events = document["traceEvents"]
    lanes = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    return [one for one in events if one["ph"] == "X"], lanes


@given(profiles())
def test_a_trace_is_one_that_perfetto_reads(profile: Profile) -> None:
    document = json.loads(profile_trace(profile))
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    for one in document["traceEvents"]:
        assert one["ph"] in ("X", "M")
        assert isinstance(one["pid"], int)
        assert isinstance(one["name"], str)
        if one["ph"] == "X":
            assert isinstance(one["tid"], int)
            assert one["ts"] >= 0
            assert one["dur"] >= 0
            json.dumps(one["args"], allow_nan=False)


@given(profiles())
def test_bars_of_a_lane_do_not_overlap_and_lie_inside_of_those_above(profile: Profile) -> None:
    found, lanes = bars(profile)
    assert {one["tid"] for one in found} <= set(lanes)
    assert len(set(lanes.values())) == len(lanes)
    by_lane: dict[int, list[dict[str, Any]]] = {lane: [] for lane in lanes}
    for one in found:
        by_lane[one["tid"]].append(one)
    slack = 1e-3  # sums of floats
    for lane, name in lanes.items():
        here = sorted(by_lane[lane], key=lambda one: (one["ts"], one["dur"]))
        for one, following in pairwise(here):
            assert one["ts"] + one["dur"] <= following["ts"] + slack
        if lane == 0 or name == "kernels":
            continue
        for one in here:
            around = [
                other
                for other in by_lane[lane - 1]
                if other["ts"] <= one["ts"] + slack and one["ts"] + one["dur"] <= other["ts"] + other["dur"] + slack
            ]
            path, run = one["args"]["module"], one["args"]["run"]
            assert any(
                other["args"]["run"] == run
                and (not other["args"]["module"] or path.startswith(other["args"]["module"] + "."))
                for other in around
            )


@given(profiles())
def test_every_run_of_every_node_is_a_kernel_of_the_trace(profile: Profile) -> None:
    found, lanes = bars(profile)
    kernels = [one for one in found if lanes[one["tid"]] == "kernels"]
    assert len(kernels) == len(profile.events)
    assert sum(one["dur"] for one in kernels) == pytest.approx(sum(event.duration for event in profile.events))


def test_levels_of_modules_are_lanes() -> None:
    found, lanes = bars(small())
    assert lanes == {0: "level 0", 1: "level 1", 2: "level 2", 3: "kernels"}
    first = [one for one in found if one["args"]["run"] == 0 and lanes[one["tid"]] != "kernels"]
    assert sorted((one["tid"], one["name"], one["args"]["module"], one["dur"]) for one in first) == [
        (0, "Net", "", 0.0),  # e
        (0, "Net", "", 18.0),  # a, b and c, with the pauses between them; nobody owns d
        (1, "enc", "enc", 0.0),
        (1, "enc", "enc", 16.0),
        (1, "head", "head", 1.0),
        (2, "act", "enc.act", 0.0),
        (2, "fc", "enc.fc", 10.0),  # b is of several: it is in the module around them
    ]


def test_bars_make_room_for_what_runs_inside_of_a_node() -> None:
    """An If of one module, and in its branch a node of another and one of the same module."""
    found = replace(
        small(),
        events=(
            KernelEvent("c", 0, 0.0, 30.0, 12.0),  # of head: it lasts as long as a and e inside of it, and longer
            KernelEvent("a", 0, 5.0, 10.0),
            KernelEvent("e", 0, 16.0, 2.0),
            KernelEvent("d", 0, 40.0, 2.0),
        ),
    )
    shown = [(one["name"], one["ts"], one["ts"] + one["dur"]) for one in bars(found)[0] if one["tid"] == 1]
    assert sorted(shown, key=lambda one: one[1]) == [("head", 0.0, 5.0), ("enc", 5.0, 18.0)]
    whole = [(one["ts"], one["dur"]) for one in bars(found)[0] if one["tid"] == 0]
    assert whole == [(0.0, 30.0)]


@given(profiles())
def test_parts_add_up_to_the_whole(profile: Profile) -> None:
    assert sum(module.own for module in profile.modules) == pytest.approx(profile.time)
    assert sum(node.time for node in profile.nodes) == pytest.approx(profile.time)
    roots = [module for module in profile.modules if module.path in ("", None)]
    assert sum(module.time for module in roots) == pytest.approx(profile.time)
    for module in profile.modules:
        assert module.own <= module.time * (1 + 1e-9)
        assert sum(module.operators.values()) == pytest.approx(module.time)
        assert sum(module.providers.values()) == pytest.approx(module.time)


def test_the_median_over_the_runs_counts_and_what_is_shared_is_the_module_around() -> None:
    found = {module.path: module for module in small().modules}
    assert RUNS == 3
    assert found["enc.fc"].time == 20.0
    assert found["enc"].own == 5.0
    assert found["enc"].time == 25.0
    assert [(one.modules, one.time, one.nodes) for one in found["enc"].shared] == [(("enc.fc", "enc.act"), 5.0, 1)]
    assert found[""].time == 26.0
    assert found[None].time == 2.0
    assert small().attributed == pytest.approx(26 / 28)


@given(profiles())
def test_no_control_character_gets_through(profile: Profile) -> None:
    shown = as_text(profile_tables(profile, everything=True, verbose=True)) + profile_csv(profile)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert profile_trace(profile).isascii()


def test_a_spreadsheet_has_a_row_for_each_module_and_no_formulas() -> None:
    rows = list(csv.DictReader(io.StringIO(profile_csv(small()))))
    assert tuple(rows[0]) == MODULE_COLUMNS
    assert [(row["module"], row["class"], float(row["time_us"])) for row in rows] == [
        ("", "Net", 26.0),
        ("enc", "Encoder", 25.0),
        ("enc.fc", "Linear", 20.0),
        ("enc.act", "ReLU", 0.0),
        ("head", "Linear", 1.0),
        ("", "", 2.0),
    ]
    assert not any(value.startswith(("=", "+", "-", "@")) for row in rows for value in row.values())


def test_a_table_shows_levels_and_what_is_fused() -> None:
    text = as_text(profile_tables(small()))
    assert "Net" in text
    assert "(fused: fc+act 17.9%)" in text
    assert "(no module)" in text
    assert "92.9 % of the time of all kernels belongs to a module" in text
    assert "act " not in text.split("(no module)")[0].replace("+act ", "")  # it took no time
    assert "head" not in as_text(profile_tables(small(), depth=0))
    assert EVIL not in text


@pytest.mark.parametrize(("time", "text"), [(0, "0 µs"), (12.3, "12 µs"), (2410, "2.41 ms"), (1_500_000, "1.50 s")])
def test_times_as_people_read_them(time: float, text: str) -> None:
    assert time_text(time) == text
