"""What the measurement of fleets computes itself: the simulated cluster, and which parts are measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measure.catalogue import NotRunnable, Options
from measure.corpus.rows import read_rows
from measure.fleet.fleet_run import PARTS, choose_parts, run_measure
from measure.fleet.simulation import ClusterModel, compose_plan, simulate
from measure.fleet.speed import compose_growth, compose_overhead
from tests.support.fleets import step_result

from measure.fleet import corpus_models

STEADY = ClusterModel(4, mean_life=1e12, overhead=0.0, hang_share=0.0)


def test_equal_rows_on_workers_that_live_take_their_share() -> None:
    forecast = simulate([10.0], 100, STEADY)
    assert (forecast.makespan, forecast.busy_share, forecast.deaths) == (250.0, 1.0, 0)
    assert forecast.worker_hours == pytest.approx(1000 / 3600)


def test_what_dies_is_run_again_and_takes_longer() -> None:
    mortal = ClusterModel(4, mean_life=200.0, restart=20.0, overhead=0.0, hang_share=0.0)
    forecast = simulate([10.0], 1000, mortal)
    assert forecast.deaths > 20
    assert 0 < forecast.rerun_hours < forecast.deaths * 10 / 3600
    assert forecast.makespan > simulate([10.0], 1000, STEADY).makespan


def test_rows_that_hang_take_their_limit() -> None:
    hanging = ClusterModel(1, mean_life=1e12, overhead=0.0, hang_share=1.0, timeout=600.0)
    assert simulate([1.0], 10, hanging).makespan == 6000.0


def test_a_plan_says_what_it_assumes() -> None:
    table = compose_plan([5.0, 10.0, 30.0], 3)
    assert {row[0] for row in table.rows} == {"1,000", "100,000"}
    assert "median 10 s, most 30 s" in table.text


def test_overhead_is_what_is_computed_beside_the_commands_and_waited_for() -> None:
    assert compose_overhead(2.0, 1.9, 0.15).rows == (("2.00", "1.90", "0.15", "0.25"),)
    assert compose_overhead(2.0, 1.9, 0.15).holds
    assert not compose_overhead(2.0, 1.9, 0.25).holds
    assert not compose_overhead(2.0, 1.5, 0.0).holds


def test_steps_of_larger_models_stand_by_themselves() -> None:
    results = [
        replace(step_result(step, figures={"nodes": 100 * number}, row=str(number)), cpu_seconds=cpu, peak_bytes=10**8)
        for number, cpu in ((1, 2.0), (2, 4.0), (9, 30.0))
        for step in ("export", "verify")
    ]
    rows = [row[:4] for row in compose_growth(results).rows if row[0] == "export"]
    assert rows == [
        ("export", "all", "3", "4.0"),
        ("export", "up to 200 nodes", "2", "3.0"),
        ("export", "more", "1", "30.0"),
    ]


def test_only_what_is_kept_can_be_written_again() -> None:
    with pytest.raises(NotRunnable, match="--page-only is for growth, plan"):
        run_measure(Options(rows=("faults",), page_only=True))


def test_parts_and_rows_are_told_apart() -> None:
    corpus = read_rows()
    assert choose_parts(Options(), corpus) == (set(PARTS), [])
    assert choose_parts(Options(rows=("faults", "resume")), corpus) == ({"faults", "resume"}, [])
    assert choose_parts(Options(rows=("bert", "t5")), corpus) == ({"speed"}, ["bert", "t5"])
    with pytest.raises(NotRunnable, match="no such row: nobody"):
        choose_parts(Options(rows=("nobody",)), corpus)


def test_rows_of_the_corpus_are_callables() -> None:
    model, inputs = corpus_models.bert()
    assert type(model).__name__ == "BertModel"
    assert "input_ids" in inputs
    with pytest.raises(AttributeError):
        corpus_models.nobody  # noqa: B018
