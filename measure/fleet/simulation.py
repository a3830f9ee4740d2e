"""A plan for many models: a cluster simulated from the run times that were measured.

Rows are drawn from the measured ones with replacement, and given to the next worker that is free, as the fleet does.
Workers die at random moments of an exponential distribution; the row that one was at is run again from its step on the
next free worker, and the worker is back after a while. Nothing else is random, and every draw is seeded.

    makespan    from the start until the last row has ended
    cost        hours of workers that are there, busy or not, times a price
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from measure.pages import Table

_SEED = 0
_TRIALS = 5


@dataclass(frozen=True)
class ClusterModel:
    """
    workers      processes that compute one row at a time, with a core each
    mean_life    seconds until a worker dies, on average; preemptible machines live about a day
    restart      seconds until another one is there
    overhead     seconds of each row beside its processes
    price        of one worker for an hour
    hang_share   rows that hang, and are cut off after `timeout` seconds
    """

    workers: int
    mean_life: float = 24 * 3600.0
    restart: float = 120.0
    overhead: float = 0.3
    price: float = 0.05
    hang_share: float = 0.001
    timeout: float = 600.0


@dataclass(frozen=True)
class Forecast:
    makespan: float
    worker_hours: float
    busy_share: float
    deaths: int
    rerun_hours: float
    hung: int


def simulate(times: Sequence[float], rows: int, model: ClusterModel, seed: int = _SEED) -> Forecast:
    """One trial."""
    draw = random.Random(seed)
    free = [(0.0, worker) for worker in range(model.workers)]
    ends_of_life = [draw.expovariate(1 / model.mean_life) for _ in range(model.workers)]
    busy = lost = last = 0.0
    deaths = hung = 0
    for _ in range(rows):
        is_hung = draw.random() < model.hang_share
        hung += is_hung
        left = (model.timeout if is_hung else draw.choice(times)) + model.overhead
        while left > 0:
            now, worker = heapq.heappop(free)
            if now + left <= ends_of_life[worker]:
                busy += left
                now, left = now + left, 0.0
                last = max(last, now)
            else:
                died = max(now, ends_of_life[worker])
                lost += died - now
                deaths += 1
                now = died + model.restart
                ends_of_life[worker] = now + draw.expovariate(1 / model.mean_life)
            heapq.heappush(free, (now, worker))
    hours = model.workers * last / 3600
    return Forecast(last, hours, busy / (model.workers * last), deaths, lost / 3600, hung)


def compose_plan(times: Sequence[float], rows_measured: int) -> Table:
    """times  seconds of all steps of a row, for each row that was measured"""
    lines = []
    for rows, workers in ((1_000, 10), (1_000, 100), (100_000, 100), (100_000, 1_000)):
        for scale in (1, 10):
            model = ClusterModel(workers)
            scaled = [scale * time for time in times]
            trials = [simulate(scaled, rows, model, seed) for seed in range(_TRIALS)]
            lines.append(_describe(rows, workers, scale, model, trials))
    model = ClusterModel(1)
    columns = (
        "models",
        "workers",
        "run times",
        "makespan",
        "worker hours",
        "cost",
        "busy",
        "workers that die",
        "run again",
        "hang",
    )
    text = (
        f"From the CPU seconds of {rows_measured} rows (median {statistics.median(times):.0f} s, most "
        f"{max(times):.0f} s), as measured and ten times as long. Assumed: a core for each worker; a worker lives "
        f"{model.mean_life / 3600:.0f} h on average and is replaced after {model.restart:.0f} s; "
        f"{100 * model.hang_share:.1f} % of rows hang and are cut off after {model.timeout:.0f} s; {model.overhead} s "
        f"of overhead for a row; ${model.price:.2f} for a worker and hour. Median of {_TRIALS} trials."
    )
    return Table("A plan for 1,000 and 100,000 models", text, columns, tuple(lines))


def _describe(rows: int, workers: int, scale: int, model: ClusterModel, trials: Sequence[Forecast]) -> tuple[str, ...]:
    hours = statistics.median(trial.worker_hours for trial in trials)
    return (
        f"{rows:,}",
        f"{workers:,}",
        f"× {scale}",
        duration_text(statistics.median(trial.makespan for trial in trials)),
        f"{hours:,.1f}",
        f"${hours * model.price:,.2f}",
        f"{100 * statistics.median(trial.busy_share for trial in trials):.0f} %",
        f"{statistics.median(trial.deaths for trial in trials):,.0f}",
        f"{statistics.median(trial.rerun_hours for trial in trials):.1f} h",
        f"{statistics.median(trial.hung for trial in trials):,.0f}",
    )


def duration_text(seconds: float) -> str:
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
