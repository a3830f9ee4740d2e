"""Results are kept so that only what changed shows."""

from __future__ import annotations

import random
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from measure.corpus.outcome import Outcome, Proof, Result
from measure.corpus.results import Results, read_result, read_results, write_result, write_results
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
    path = Path(tmp_path_factory.getbasetemp()) / "result.json"  # type: ignore[attr-defined]
    write_result(result, path)
    assert read_result(path) == result


@given(st.lists(results, max_size=4), st.randoms(use_true_random=False))
def test_the_file_does_not_depend_on_the_order_of_arrival(
    tmp_path_factory: object, found: list[Result], shuffler: random.Random
) -> None:
    base = Path(tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    unique = list({result.key: result for result in found}.values())
    first = Results({"torch": "1"}).updated(unique)
    shuffler.shuffle(unique)
    second = Results({"torch": "1"}).updated(unique)
    write_results(first, base / "first.json")
    write_results(second, base / "second.json")
    assert (base / "first.json").read_bytes() == (base / "second.json").read_bytes()
    assert read_results(base / "first.json") == first


def test_each_attempt_is_a_line(tmp_path: Path) -> None:
    before = Results({"torch": "1"}).updated([fine("a"), refused("b", "no\nway"), fine("c")])
    write_results(before, tmp_path / "before.json")
    write_results(before.updated([fine("b")]), tmp_path / "after.json")
    old, new = ((tmp_path / name).read_text().splitlines() for name in ("before.json", "after.json"))
    assert [index for index, pair in enumerate(zip(old, new, strict=True)) if pair[0] != pair[1]] == [4]


def test_rows_that_are_gone_are_dropped() -> None:
    known = Results({}).updated([fine("a"), fine("b"), fine("b", "torchscript")])
    assert set(known.only([("b", "dynamo"), ("c", "dynamo")]).by_attempt) == {("b", "dynamo")}


def test_nothing_is_known_at_first(tmp_path: Path) -> None:
    assert read_results(tmp_path / "none.json") == Results()
