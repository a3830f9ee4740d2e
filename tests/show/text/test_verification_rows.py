from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.support.verification import CALL_NUMBERS, numbers

from modelexport.record.results.verification import CallNumbers, Status
from modelexport.show.text.verification_rows import FEW, Gap, ModuleNumbers, Shown, by_module, in_order, ranked


def labels(rows: list[ModuleNumbers | Gap]) -> list[str]:
    """Paths, and for gaps how many are missing."""
    return [f"…{sum(row.statuses.values())}" if isinstance(row, Gap) else row.path for row in rows]


def chain(count: int, *, wrong: int) -> list[CallNumbers]:
    """Modules one after the other; one diverges, and everything after it follows."""
    made = [numbers(f"m{place}", 120, 120 - place / count) for place in range(wrong)]
    made.append(numbers(f"m{wrong}", 118, 21))
    return [*made, *(numbers(f"m{place}", 21, 20) for place in range(wrong + 1, count))]


def lost(*calls: CallNumbers) -> list[ModuleNumbers]:
    return by_module(sorted(calls, key=lambda item: item.rank))


def test_calls_of_one_module_are_one_row() -> None:
    first, second, third = numbers("a", 130, 120), numbers("a#1", 118, 30), numbers("a#2", 30, 20)
    rows = by_module([numbers("b"), first, numbers("c"), second, third])
    assert [(row.path, len(row.calls)) for row in rows] == [("b", 1), ("a", 3), ("c", 1)]
    row = rows[1]
    assert row.outputs is not None
    assert (row.outputs.sqnr, row.status, row.worst_call, row.losing_call) == (20, Status.DIVERGES, second, second)


def test_a_module_of_which_some_calls_were_compared() -> None:
    [row] = by_module([numbers("a", None, None), numbers("a#1")])
    assert (row.status, row.compared, len(row.calls)) == (Status.OK, 1, 2)


def test_a_short_table_is_shown_as_it_is() -> None:
    modules = by_module(chain(60, wrong=7))
    assert labels(in_order(modules, Shown())) == [f"m{place}" for place in range(60)]


def test_a_long_table_keeps_the_culprit_what_is_around_it_and_the_first_that_follow() -> None:
    rows = in_order(by_module(chain(200, wrong=100)), Shown())
    assert labels(rows) == ["…99", *(f"m{place}" for place in range(99, 139)), "…61"]
    assert [row.statuses for row in rows if isinstance(row, Gap)] == [{Status.OK: 99}, {Status.FOLLOWS: 61}]


def test_where_all_agree_the_worst_are_kept_in_order() -> None:
    calls = [numbers(f"m{place}", 120, 110 if place in (5, 90) else 120) for place in range(100)]
    assert labels(in_order(by_module(calls), Shown(top=2))) == ["…5", "m5", "…84", "m90", "…9"]


def test_every_module_that_diverges_is_shown() -> None:
    calls = [numbers(f"m{place}", 118, 21) for place in range(2 * FEW)]
    assert len(in_order(by_module(calls), Shown())) == 2 * FEW
    assert len(in_order(by_module(calls), Shown(top=3))) == 4


def test_modules_that_were_not_compared_have_a_row_only_if_everything_is_asked_for() -> None:
    modules = by_module([numbers("a"), numbers("b", None, None)])
    assert labels(in_order(modules, Shown())) == ["a"]
    assert labels(in_order(modules, Shown(everything=True))) == ["a", "b"]
    assert [row.path for row in ranked(modules, Shown(everything=True)).rows] == ["a", "b"]


@given(st.lists(CALL_NUMBERS, max_size=30), st.none() | st.integers(1, 8))
def test_every_compared_module_is_shown_or_counted(calls: list[CallNumbers], top: int | None) -> None:
    modules = by_module(calls)
    compared = sum(module.compared > 0 for module in modules)
    rows = in_order(modules, Shown(top=top))
    assert sum(sum(row.statuses.values()) if isinstance(row, Gap) else 1 for row in rows) == compared
    if top is not None:
        assert sum(isinstance(row, ModuleNumbers) for row in rows) == min(top, compared)
    ranking = ranked(modules, Shown(by_loss=True, top=top))
    assert len(ranking.rows) + ranking.around + ranking.less == compared
    assert min(ranking.around, ranking.less) >= 0


def test_what_loses_most_comes_first() -> None:
    ranking = ranked(lost(numbers("a", 120, 119), numbers("b", 119, 50), numbers("c", 50, 49.99)), Shown())
    assert [row.path for row in ranking.rows] == ["b", "a"]
    assert (ranking.around, ranking.less) == (0, 1)


def test_a_module_around_what_loses_is_no_news() -> None:
    """What it loses is lost inside of it, twice: once in each of two modules one after the other."""
    calls = numbers("", 120, 60), numbers("block", 120, 60), numbers("block.a", 120, 80), numbers("block.b", 80, 60)
    ranking = ranked(lost(*calls), Shown())
    assert [row.path for row in ranking.rows] == ["block.a", "block.b"]
    assert (ranking.around, ranking.less) == (2, 0)
    assert len(ranked(lost(*calls), Shown(everything=True)).rows) == 4


def test_a_module_that_loses_more_than_what_is_inside_is_news() -> None:
    ranking = ranked(lost(numbers("block", 120, 60), numbers("block.a", 120, 110)), Shown())
    assert [row.path for row in ranking.rows] == ["block", "block.a"]


def test_only_the_top_of_a_ranking() -> None:
    calls = [numbers(f"m{place}", 120, 100 - place) for place in range(50)]
    assert [row.path for row in ranked(lost(*calls), Shown(top=2)).rows] == ["m49", "m48"]
    shown = ranked(lost(*calls), Shown())
    assert len(shown.rows) + shown.less == 50
    assert shown.less == 30
