"""Results are kept so that only what changed shows."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measure.corpus.rows import Outcome, Proof, Result
from measure.results import Results, TaskFolder, installed_versions, read_results, write_results
from tests.support.corpus_rows import fine, refused

counts = st.integers(0, 9)
proofs = st.builds(Proof, *[counts] * 8, open=st.dictionaries(st.text(max_size=5), counts, max_size=2))
results = st.builds(
    Result,
    st.text(max_size=5),
    st.sampled_from(["dynamo", "torchscript"]),
    st.sampled_from(Outcome),
    st.text(max_size=9),
    st.none() | proofs,
    st.lists(st.text(max_size=9), max_size=2).map(tuple),
)


@given(results)
def test_a_result_reads_back(tmp_path_factory: object, result: Result) -> None:
    folder = TaskFolder(Path(tmp_path_factory.getbasetemp()))  # type: ignore[attr-defined]
    folder.write("task", result)
    assert Result.from_json(folder.read("task")) == result


@given(st.lists(results, max_size=4), st.randoms(use_true_random=False))
def test_the_file_does_not_depend_on_the_order_of_arrival(
    tmp_path_factory: object, found: list[Result], shuffler: random.Random
) -> None:
    base = Path(tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    unique = list({result.key: result for result in found}.values())
    first = Results[Result]({"torch": "1"}).updated(unique)
    shuffler.shuffle(unique)
    second = Results[Result]({"torch": "1"}).updated(unique)
    write_results(first, base / "first.json")
    write_results(second, base / "second.json")
    assert (base / "first.json").read_bytes() == (base / "second.json").read_bytes()
    assert read_results(base / "first.json", Result) == first


def test_each_attempt_is_a_line(tmp_path: Path) -> None:
    before = Results[Result]({"torch": "1"}).updated([fine("a"), refused("b", "no\nway"), fine("c")])
    write_results(before, tmp_path / "before.json")
    write_results(before.updated([fine("b")]), tmp_path / "after.json")
    old, new = ((tmp_path / name).read_text().splitlines() for name in ("before.json", "after.json"))
    assert [index for index, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]] == [4]


def test_rows_that_are_gone_are_dropped() -> None:
    known = Results[Result]({}).updated([fine("a"), fine("b"), fine("b", "torchscript")])
    assert set(known.only([("b", "dynamo"), ("c", "dynamo")]).by_key) == {("b", "dynamo")}


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none.json", Result) == Results()


def test_two_tasks_have_two_files() -> None:
    folder = TaskFolder(Path("folder"))
    tasks = ("ort:all", "int8", "int8+ort:all", "opset:21", "ort:basic")
    paths = [path for task in tasks for path in (folder.result_path(task), folder.running_path(task))]
    assert len(set(paths)) == 10
    assert {path.parent for path in paths} == {folder.path}


def test_a_task_is_running_until_it_ends_or_fails(tmp_path: Path) -> None:
    folder = TaskFolder(tmp_path)
    assert (folder.running_task(["a", "b"]), folder.seconds_running(["a", "b"])) == (None, 0.0)
    with pytest.raises(KeyError), folder.running("b"):
        assert folder.running_task(["a", "b"]) == "b"
        raise KeyError
    assert folder.running_task(["a", "b"]) is None


def test_local_labels_of_versions_are_left_out() -> None:
    assert not [version for version in installed_versions().values() if "+" in version]
    assert installed_versions("numpy").keys() - installed_versions().keys() == {"numpy"}
