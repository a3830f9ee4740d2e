"""Fleets: speed on several workers, seeded faults, resume of 10,000 rows, and plans for many models.

python -m measure fleet                     everything, with all architectures of the corpus: hours
python -m measure fleet faults resume       these parts of the page
python -m measure fleet speed bert t5       with these rows of the corpus
python -m measure fleet growth plan         run times, kept from run to run, and plans made of them
python -m measure fleet growth --page-only  with the run times that are there
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from measure.catalogue import NotRunnable, Options
from measure.corpus.rows import Row, read_rows
from measure.fleet.corpus_models import pick_corpus
from measure.fleet.faults import measure_faults
from measure.fleet.resuming import measure_resume
from measure.fleet.runs import known
from measure.fleet.simulation import compose_plan
from measure.fleet.speed import GROWTH, measure_growth, measure_overhead, measure_speed, measure_waiting
from measure.pages import MEASURED, Table, compose_blocks, fill_blocks, write_page, written_by
from measure.workers import BUILD

PAGE = MEASURED.parent / "scale.md"
FOLDER = BUILD / "fleet"
PARTS = ("speed", "waiting", "overhead", "growth", "faults", "resume", "plan")
# Made from run times that stay.
_KEPT = {"growth", "plan"}


def run_measure(options: Options) -> int:
    corpus = read_rows()
    parts, names = choose_parts(options, corpus)
    if options.page_only and not parts <= _KEPT:
        raise NotRunnable(f"--page-only is for {', '.join(sorted(_KEPT))}, whose run times are kept")
    tables = {}
    for name, table in measure_parts(parts, pick_corpus(corpus, names), known_only=options.page_only):
        tables[name] = table
        # At once: parts take an hour each, and one that fails must not cost those before it.
        write_page(PAGE, fill_blocks(read_page(), {name: table.body()}))
        sys.stdout.write(f"{table.markdown()}\n")
        sys.stdout.flush()
    missed = [table.title for table in tables.values() if not table.holds]
    if missed:
        sys.stderr.write(f"missed: {', '.join(missed)}\n")
    return 1 if missed else 0


def measure_parts(
    parts: Collection[str], rows: Sequence[Row], *, known_only: bool = False
) -> Iterator[tuple[str, Table]]:
    if "speed" in parts:
        yield "speed", measure_speed(rows, FOLDER)
    if "waiting" in parts:
        yield "waiting", measure_waiting(FOLDER / "waiting")
    if "overhead" in parts:
        yield "overhead", measure_overhead(FOLDER / "overhead")
    if "growth" in parts:
        yield "growth", measure_growth(rows, FOLDER, known_only=known_only)
    if "faults" in parts:
        yield "faults", measure_faults(FOLDER / "faults")
    if "resume" in parts:
        yield "resume", measure_resume(FOLDER / "resume")
    if "plan" in parts:
        times = row_times(FOLDER / GROWTH)
        yield "plan", compose_plan(times, len(times))


def choose_parts(options: Options, corpus: Sequence[Row]) -> tuple[set[str], list[str]]:
    """Parts of the page and rows of the corpus, which have different names."""
    rows = {row.name for row in pick_corpus(corpus, ())}
    options.pick_rows((*PARTS, *(name for name in rows if name not in PARTS)))
    parts = {name for name in options.rows if name in PARTS}
    names = [name for name in options.rows if name not in PARTS]
    if names and not parts:
        parts = {"speed"}
    return parts or set(PARTS), names


def row_times(folder: Path) -> list[float]:
    """CPU seconds of all steps of each row that is known."""
    times: defaultdict[str, float] = defaultdict(float)
    for (row, _), result in known(folder).items():
        times[row] += result.cpu_seconds or 0.0
    if not times:
        raise NotRunnable("no run times yet: measure `growth` first")
    return sorted(times.values())


def read_page() -> str:
    if PAGE.exists():
        return PAGE.read_text(encoding="utf-8")
    blank = {name: Table(name, "", (), ()) for name in PARTS}
    return compose_blocks("Scale", written_by("fleet", "on one machine"), blank)
