"""The page shows what the results say, the same every time."""

from __future__ import annotations

from dataclasses import replace

from measure.corpus.corpus_page import PAGE, compose_corpus, entries_of, find_missed, read_known
from measure.corpus.rows import Expected, Outcome, Proof, Result, read_rows
from measure.results import Results
from tests.support.corpus_rows import fine, refused, row

ROWS = (
    row("one", "vision", torchscript=Expected(Outcome.REFUSED, "RuntimeError: no", "It has no such operator.")),
    row("two", dynamo=Expected(Outcome.DIVERGES, "block.0", "It rounds.")),
)
WRONG = Result("two", "dynamo", Outcome.DIVERGES, "block.0", fine("two", nodes=30, shown=20).proof)
RESULTS = Results[Result]({"torch": "1.0", "onnx": "2.0"}).updated(
    [fine("one", nodes=10, shown=9), refused("one", "RuntimeError: no", "torchscript"), WRONG]
)


def cells(text: str, *starts: str) -> list[str]:
    """The cells of the one line of a table that starts so."""
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {' | '.join(starts)} |")]
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_page_says_how_it_was_written() -> None:
    head = compose_corpus(ROWS, RESULTS).splitlines()[2]
    assert head == "Written by `make corpus` (`python -m measure corpus`) with torch 1.0, onnx 2.0; do not edit."


def test_the_page_depends_on_nothing_but_rows_and_results() -> None:
    backwards = Results(RESULTS.versions, dict(reversed([*RESULTS.by_key.items()])))
    assert compose_corpus(ROWS, backwards) == compose_corpus(ROWS, RESULTS)


def test_a_row_shows_its_verdicts() -> None:
    text = compose_corpus(ROWS, RESULTS)
    figures = ["10", "9", "0", "1", "0", "0", "90.0", "90.0", "agree"]
    assert cells(text, "one", "vision", "`rooms.One`", "dynamo")[4:] == ["ok", *figures]
    assert cells(text, "one", "vision", "`rooms.One`", "torchscript")[4:] == ["refused", *[""] * 9]
    assert cells(text, "two", "hand-made", "`rooms.Two`", "dynamo")[-1] == "wrong"


def test_sums_go_over_families_and_exporters() -> None:
    text = compose_corpus(ROWS, RESULTS)
    outcomes = ["1", "1", "0", "0", "1", "0"]
    assert cells(text, "together") == ["together", *outcomes, "40", "29", "0", "11", "0", "0", "72.5", "40", "72.5"]
    assert cells(text, "vision")[-2:] == ["10", "90.0"]
    assert cells(text, "nobody knows") == ["nobody knows", "11", "0", "2"]


def test_nodes_that_compute_no_floats_are_counted_apart() -> None:
    proof = Proof(nodes=4, proved=1, enclosed=1, not_provable=2, compute=1, compute_shown=1, open_rest={"sizes": 2})
    found = Result("one", "dynamo", Outcome.OK, proof=replace(proof, shown_by={"its value": 1, "all that reads it": 1}))
    text = compose_corpus(ROWS[:1], Results[Result]({}).updated([found]))
    assert cells(text, "sizes") == ["sizes", "0", "2", "1"]
    assert cells(text, "all that reads it") == ["all that reads it", "1"]
    assert cells(text, "together")[-3:] == ["50.0", "1", "100.0"]


def test_each_target_that_is_missed_is_named() -> None:
    assert find_missed(entries_of(ROWS, RESULTS)) == [
        "90.0 % of compute nodes in files whose numbers agree are proved or enclosed: less than 99.0 %",
        "72.5 % of compute nodes in all files are proved or enclosed: less than 97.5 %",
        "72.5 % of all nodes are proved or enclosed: less than 94.0 %",
    ]


def test_exceptions_come_with_their_reasons() -> None:
    text = compose_corpus(ROWS, RESULTS)
    assert "- one, torchscript: refused: `RuntimeError: no` It has no such operator." in text
    assert "- two, dynamo: diverges: `block.0` It rounds." in text
    assert "## Changed" not in text


def test_what_changed_stands_first() -> None:
    broken = Proof(nodes=3, proved=2, contradicted=1, compute=3, compute_shown=2, open={"elsewhere": 1})
    defect = Result("one", "dynamo", Outcome.DEFECT, "Add x", broken, ("Add x is credited to a; values say b",))
    text = compose_corpus(ROWS, RESULTS.updated([defect, fine("two")]))
    changed = text.partition("## Together")[0]
    assert "- one, dynamo: expected ok, found defect (Add x)" in changed
    assert "- two, dynamo: expected diverges (block.0), found ok" in changed
    assert "\n  - Add x is credited to a; values say b" in text


def test_the_committed_page_is_that_of_the_committed_results() -> None:
    """And these know every row, and found nothing but what the rows say."""
    rows, results = read_rows(), read_known()
    assert set(results.by_key) == {(row.name, exporter) for row in rows for exporter in row.exporters}
    entries = entries_of(rows, results)
    assert not [f"{entry.label}: {entry.change}" for entry in entries if entry.change]
    assert PAGE.read_text(encoding="utf-8") == compose_corpus(rows, results)


def test_the_committed_results_reach_the_targets() -> None:
    assert not find_missed(entries_of(read_rows(), read_known()))
