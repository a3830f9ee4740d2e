"""A profile as a trace, a table and a spreadsheet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from tests.support.building import tree
from tests.support.profiles import RUNS, credited, ensure_nested, profiled, profiles
from tests.support.verification import EVIL

from modelexport.record.provenance import NodeEntry, Origin, Provenance
from modelexport.record.results.profile import KernelEvent, Profile
from modelexport.show.data.overlays import _parse_overlay
from modelexport.show.data.results import to_csv, to_json
from modelexport.show.data.trace import profile_trace
from modelexport.show.text.console import as_text
from modelexport.show.text.cost_and_profile import profile_tables, time_text

MODULE_COLUMNS = (
    *("module", "class", "time_us", "self_us", "share", "spread", "noisy", "alike"),
    *("nodes", "calls", "kernels", "operators", "providers", "fallback_us", "shared"),
)

NET = tree({"": "Net", "enc": "Encoder", "enc.fc": "Linear", "enc.act": "ReLU", "head": "Linear"})
OWNERS = {"a": ("enc.fc",), "b": ("enc.fc", "enc.act"), "c": ("head",), "d": (), "e": ("enc.act",)}
DURATIONS: dict[tuple[str, ...], list[float]] = {
    ("a",): [10.0, 20.0, 30.0, 20.0, 20.0],
    **{(key,): [time] * RUNS for key, time in {"b": 5.0, "c": 1.0, "d": 2.0, "e": 0.0}.items()},
}


def small(
    durations: Mapping[tuple[str, ...], Sequence[float]] = MappingProxyType(DURATIONS), **runners: str
) -> Profile:
    """`runners` are providers of nodes that another one than the CPU ran."""
    entries = {key: NodeEntry(key, f"node_{key}", "MatMul", credited(NET, *paths)) for key, paths in OWNERS.items()}
    providers = {**dict.fromkeys(OWNERS, "CPUExecutionProvider"), **runners}
    return profiled(Provenance(NET, entries, {}, Origin("test", "test")), durations, providers)


def text_of(profile: Profile, width: int = 100) -> str:
    return as_text(profile_tables(profile), width)


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
            about, above = one["args"], [other["args"] for other in around]
            shared = "fused" in about or "one of" in about
            over = about["module"] if shared else about["module"].rpartition(".")[0]
            assert any(other["run"] == about["run"] and other["module"] == over for other in above)


@given(profiles())
def test_every_run_of_every_node_is_a_kernel_of_the_trace(profile: Profile) -> None:
    found, lanes = bars(profile)
    kernels = [one for one in found if lanes[one["tid"]] == "kernels"]
    assert len(kernels) == len(profile.events)
    assert sum(one["dur"] for one in kernels) == pytest.approx(sum(event.duration for event in profile.events))


@given(profiles())
def test_bars_come_in_the_order_of_time_and_nest(profile: Profile) -> None:
    """As the trace format wants it: bars of a lane lie inside of each other or apart, and the outer one comes first."""
    ensure_nested(bars(profile)[0])


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
        (2, "fc", "enc.fc", 10.0),
        (2, "fused: fc+act", "enc", 5.0),  # b is of several: it is in the module around them
    ]
    (fused,) = [one for one in first if "fused" in one["args"]]
    assert fused["args"]["fused"] == ["enc.fc", "enc.act"]


def test_what_may_be_of_several_modules_says_so_in_the_trace() -> None:
    found, _ = bars(small({("a", "c"): [1.0] * RUNS}))
    unclear = [one for one in found if "one of" in one["args"]]
    assert {(one["name"], one["tid"], tuple(one["args"]["one of"])) for one in unclear} == {
        ("one of: enc.fc or head", 1, ("enc.fc", "head"))
    }
    assert len(unclear) == RUNS


def test_bars_make_room_for_what_runs_inside_of_a_node() -> None:
    """An If of one module, and in its branch a node of another and one of the same module."""
    found = replace(
        small(),
        events=(
            KernelEvent(("c",), 0, 0.0, 30.0, 12.0),  # of head: it lasts as long as a and e inside of it, and longer
            KernelEvent(("a",), 0, 5.0, 10.0),
            KernelEvent(("e",), 0, 16.0, 2.0),
            KernelEvent(("d",), 0, 40.0, 2.0),
        ),
    )
    shown = [(one["name"], one["ts"], one["ts"] + one["dur"]) for one in bars(found)[0] if one["tid"] == 1]
    assert sorted(shown, key=lambda one: one[1]) == [("head", 0.0, 5.0), ("enc", 5.0, 18.0)]
    whole = [(one["ts"], one["dur"]) for one in bars(found)[0] if one["tid"] == 0]
    assert whole == [(0.0, 30.0)]
    ensure_nested(bars(found)[0])


@given(profiles())
def test_parts_add_up_to_the_whole(profile: Profile) -> None:
    assert sum(module.own for module in profile.modules) == pytest.approx(profile.time)
    assert sum(node.time for node in profile.nodes) == pytest.approx(profile.time)
    roots = [module for module in profile.modules if module.path in ("", None)]
    assert sum(module.time for module in roots) == pytest.approx(profile.time)
    assert profile.check.holds
    for module in profile.modules:
        assert module.own <= module.time * (1 + 1e-9)
        assert sum(module.operators.values()) == pytest.approx(module.time)
        assert sum(module.providers.values()) == pytest.approx(module.time)


def test_the_median_over_the_runs_counts_and_what_is_shared_is_the_module_around() -> None:
    found = {module.path: module for module in small().modules}
    assert RUNS == 5
    assert found["enc.fc"].time == 20.0
    assert found["enc"].own == 5.0
    assert found["enc"].time == 25.0
    assert [(one.modules, one.time, one.nodes) for one in found["enc"].shared] == [(("enc.fc", "enc.act"), 5.0, 1)]
    assert found[""].time == 26.0
    assert found[None].time == 2.0
    assert small().attributed == pytest.approx(26 / 28)


@given(profiles())
def test_no_control_character_gets_through(profile: Profile) -> None:
    shown = as_text(profile_tables(profile, everything=True, verbose=True)) + to_csv(profile)
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert profile_trace(profile).isascii()


def test_a_spreadsheet_has_a_row_for_each_module_and_no_formulas() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv(small()))))
    assert tuple(rows[0]) == MODULE_COLUMNS
    assert [(row["module"], row["class"], float(row["time_us"])) for row in rows] == [
        ("", "Net", 26.0),
        ("enc", "Encoder", 25.0),
        ("enc.fc", "Linear", 20.0),
        ("enc.act", "ReLU", 0.0),
        ("head", "Linear", 1.0),
        ("", "", 2.0),
    ]
    assert (rows[2]["time_us"], rows[2]["spread"], rows[2]["noisy"]) == ("20.0", "0.0", "false")
    assert rows[1]["shared"] == "enc.fc+enc.act 5.0"


def test_a_spreadsheet_has_no_formulas_and_commas_do_not_break_it() -> None:
    names = ("=1+1", "+a", "-a", "@a", "a,b", 'a"b', "a\tb", "a\nb", "a\r=1")
    made = tree({"": "=Net", **dict.fromkeys(names, "=HYPERLINK()")})
    entries = {name: NodeEntry(name, name, "=Op", credited(made, name)) for name in names}
    record = Provenance(made, entries, {}, Origin("test", "test"))
    found = profiled(record, {(name,): [1.0] * RUNS for name in names}, dict.fromkeys(names, "=Provider"))
    rows = list(csv.reader(io.StringIO(to_csv(found))))
    assert {len(row) for row in rows} == {len(MODULE_COLUMNS)}
    assert not any(value.startswith(("=", "+", "-", "@", "\t", "\r")) for row in rows for value in row)
    shown = ["'=1+1", "'+a", "'-a", "'@a", "a,b", 'a"b', "a\\tb", "a\\nb", "a\\r=1"]
    assert [row[0] for row in rows[2:]] == shown


def test_a_table_shows_levels_and_what_is_fused() -> None:
    text = text_of(small())
    assert "Net" in text
    assert "(fused: fc+act 17.9%)" in text
    assert "(no module)" in text
    assert "92.9 % of the time of all kernels belongs to a module" in text
    assert "act " not in text.split("(no module)")[0].replace("+act ", "")  # it took no time
    assert "head" not in as_text(profile_tables(small(), depth=0))
    assert EVIL not in text


def test_a_table_says_what_is_counted_in_which_column() -> None:
    lines = [line.split() for line in text_of(small()).splitlines()]
    assert ["module", "time", "share", "self", "±", "calls", "nodes", "op", "types"] in lines
    assert ["fc", "20", "µs", "71.4%", "71.4%", "0%", "1", "1", "MatMul"] in lines


def test_what_may_be_of_several_modules_says_so_in_the_table() -> None:
    assert "(one of: enc.fc or head 100.0%)" in text_of(small({("a", "c"): [1.0] * RUNS}))


def test_a_deep_tree_is_readable_in_a_narrow_window() -> None:
    names = ("encoder", "layer", "10", "attention", "output", "LayerNorm")
    paths = [".".join(names[:end]) for end in range(len(names) + 1)]
    made = tree(dict.fromkeys(paths, "LongClassNameForConditionalGeneration"))
    operators = ("SkipLayerNormalization", "DynamicQuantizeMatMul", "Transpose")
    entries = {op: NodeEntry(op, op, op, credited(made, paths[-1])) for op in operators}
    record = Provenance(made, entries, {}, Origin("test", "test"))
    found = profiled(record, {(op,): [1.0] * RUNS for op in operators}, dict.fromkeys(operators, "CPU"))
    lines = as_text(profile_tables(found, everything=True), 100).splitlines()
    assert max(map(len, lines)) <= 100
    rows = [line for line in lines if "100.0%" in line]
    assert [row.split()[0] for row in rows[1:]] == list(names)


class TestOutliers:
    """Something else keeps the machine busy: in every run another kernel of module `a` takes far longer."""

    MANY = 20
    NET = tree({"": "Net", "a": "Block", "a.x": "Linear", "b": "Linear"})

    def profile(self, disturbed: bool) -> Profile:
        names = {f"a{number}": "a.x" if number % 2 else "a" for number in range(10)} | {"b": "b"}
        entries = {key: NodeEntry(key, key, "MatMul", credited(self.NET, path)) for key, path in names.items()}
        durations: dict[tuple[str, ...], list[float]] = {
            (key,): [(1000.0 if disturbed and key == f"a{run % 10}" else 10.0) + run % 3 for run in range(self.MANY)]
            for key in names
        }
        record = Provenance(self.NET, entries, {}, Origin("test", "test"))
        return profiled(record, durations, dict.fromkeys(names, "CPUExecutionProvider"), self.MANY)

    @pytest.mark.parametrize("disturbed", [False, True])
    def test_every_column_is_of_one_statistic_and_parts_add_up(self, disturbed: bool) -> None:
        profile = self.profile(disturbed)
        times = {module.path: module.time for module in profile.modules}
        assert times == {"": 121, "a": 110, "a.x": 55, "b": 11}  # outliers count nowhere
        assert profile.time == times[""] == sum(module.own for module in profile.modules)
        assert profile.time == sum(node.time for node in profile.nodes)
        document = json.loads(to_json(profile))
        for module in document["modules"]:
            assert module["share"] == pytest.approx(module["time_us"] / document["time_us"], abs=1e-5)
        rows = [line.split() for line in as_text(profile_tables(profile)).splitlines() if " MatMul" in line]
        assert [row[1:4] for row in rows] == [
            *(["121", "µs", "100.0%"], ["110", "µs", "90.9%"], ["55", "µs", "45.5%"], ["11", "µs", "9.1%"])
        ]
        assert "121 µs in kernels" in as_text(profile_tables(profile))
        # And over all runs, outliers included, nothing is lost.
        assert profile.check.holds
        assert profile.check.trace == pytest.approx(sum(event.duration for event in profile.events))

    def test_a_run_that_is_too_noisy_to_rank_is_called_so(self) -> None:
        quiet, noisy = self.profile(disturbed=False), self.profile(disturbed=True)
        assert (quiet.rankable, noisy.rankable) == (True, False)
        assert (quiet.disturbed, noisy.disturbed) == (False, True)
        assert "TOO NOISY TO RANK" not in as_text(profile_tables(quiet))
        assert "TOO NOISY TO RANK" in as_text(profile_tables(noisy))
        assert json.loads(to_json(noisy))["rankable"] is False
        assert not _overlay_notes(quiet)
        assert "too noisy to rank" in " ".join(_overlay_notes(noisy))

    def test_noise_without_disturbance(self) -> None:
        """Times that alternate: no outliers, and still it is open which module takes longer."""
        entries = {key: NodeEntry(key, key, "MatMul", credited(self.NET, key)) for key in ("a", "b")}
        record = Provenance(self.NET, entries, {}, Origin("test", "test"))
        durations: dict[tuple[str, ...], list[float]] = {("a",): [5.0, 15.0] * 5, ("b",): [16.0, 6.0] * 5}
        profile = profiled(record, durations, dict.fromkeys(entries, "CPUExecutionProvider"), 10)
        assert not profile.disturbed
        assert profile.noise == pytest.approx(20 / 10**0.5 / 21)
        assert not profile.rankable

    def test_few_runs_rank_nothing(self) -> None:
        entries = {"a": NodeEntry("a", "a", "MatMul", credited(self.NET, "a"))}
        record = Provenance(self.NET, entries, {}, Origin("test", "test"))
        profile = profiled(record, {("a",): [5.0, 5.0]}, {"a": "CPUExecutionProvider"}, 2)
        assert (profile.noise, profile.rankable) == (None, False)


def _overlay_notes(profile: Profile) -> tuple[str, ...]:
    document = json.loads(to_json(replace(profile, notes=())))
    overlay = _parse_overlay(document)
    assert overlay is not None
    return overlay.notes


class TestSum:
    """What ONNX Runtime's trace adds up to by itself, and the parts."""

    def test_it_holds(self) -> None:
        text = text_of(small(), 200)
        assert "ONNX Runtime's trace has 28 µs of kernels a run on average, and the parts add up to it" in text
        assert json.loads(to_json(small()))["sum_check"] == {"trace_us": 140.0, "charged_us": 140.0, "holds": True}

    def test_it_does_not(self) -> None:
        wrong = replace(small(), check=replace(small().check, trace=280.0))
        text = text_of(wrong, 200)
        assert (
            "NOT TO BE RELIED ON: ONNX Runtime's trace has 56 µs of kernels a run on average, the parts 28 µs" in text
        )
        assert json.loads(to_json(wrong))["sum_check"]["holds"] is False


class TestNoise:
    def test_modules_that_are_noisy_or_cannot_be_ranked_are_marked(self) -> None:
        times: dict[tuple[str, ...], list[float]] = {
            ("a",): [5.0, 8.0, 10.0, 12.0, 15.0],
            ("e",): [11.0] * RUNS,
            ("c",): [50.0] * RUNS,
        }
        text = text_of(small(times))
        lines = {line.split()[0]: line.split() for line in text.splitlines() if "%" in line}
        assert "!≈20%" in lines["fc"]
        assert "≈0%" in lines["act"]
        assert "0%" in lines["head"]
        assert "! noisy: the runs are more than ± 10% apart" in text
        assert "≈ differs from the next module" in text
        assert "noisy" not in text_of(small())

    def test_kernels_that_are_disturbed_in_turn(self) -> None:
        """Each takes its time in four runs of five, and in no run do all."""
        late: dict[tuple[str, ...], list[float]] = {
            ("a",): [9.0, 1, 1, 1, 9],
            ("c",): [1.0, 9, 1, 9, 1],
            ("e",): [1.0, 1, 9, 1, 1],
        }
        assert "kernels that took as long as they usually do would take 3 µs a run, and they take 11 µs" in text_of(
            small(late), 200
        )
        assert json.loads(to_json(small(late)))["disturbed"] is True
        assert "keeps this machine busy" not in text_of(small(), 200)
        assert json.loads(to_json(small()))["disturbed"] is False

    def test_few_runs_say_nothing(self) -> None:
        found = small()
        unknown = [replace(module, spread=None) for module in found.modules]
        few = replace(found, spread=None, modules=tuple(unknown), runs=2)
        text = text_of(few, 200)
        assert "(spread unknown)" in text
        assert "?" in next(line for line in text.splitlines() if line.startswith("Net")).split()
        document = json.loads(to_json(few))
        assert document["spread"] is None
        assert all(one["spread"] is None and one["noisy"] for one in document["modules"])
        assert next(csv.DictReader(io.StringIO(to_csv(few))))["spread"] == ""


class TestProviders:
    CUDA = "CUDAExecutionProvider"

    def test_which_module_fell_back(self) -> None:
        found = replace(small(a=self.CUDA, b=self.CUDA, d=self.CUDA), requested=(self.CUDA, "CPUExecutionProvider"))
        text = text_of(found, 200)
        assert "note: 3.6 % of the time fell back from CUDA to CPU, in head, enc.act" in text
        assert any(line.split()[0] == "head" and line.endswith("CPU 100%") for line in text.splitlines() if line)
        modules = {one["path"]: one for one in json.loads(to_json(found))["modules"]}
        assert (modules[""]["fallback_us"], modules["head"]["fallback_us"], modules["enc.fc"]["fallback_us"]) == (
            1,
            1,
            0,
        )

    def test_all_of_it(self) -> None:
        found = replace(small(), requested=(self.CUDA,))
        assert "note: 100.0 % of the time fell back from CUDA to CPU, in enc.fc, enc" in text_of(found, 200)
        assert "CPU 100%" in text_of(found)

    def test_nothing_fell_back_if_nothing_was_asked_for(self) -> None:
        text = text_of(small(a=self.CUDA))
        assert "fell back" not in text
        assert "CUDA 80%, CPU 20%" in " ".join(text.split())


@pytest.mark.parametrize(("time", "text"), [(0, "0 µs"), (12.3, "12 µs"), (2410, "2.41 ms"), (1_500_000, "1.50 s")])
def test_times_as_people_read_them(time: float, text: str) -> None:
    assert time_text(time) == text
