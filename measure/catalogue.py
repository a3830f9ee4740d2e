"""Catalogue: everything that `python -m measure` can measure, what it writes, and which options it takes.

Code is named and not imported, so that listing takes no time and a run loads only what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any


class NotRunnable(Exception):
    """What was asked for cannot be run; nothing was written."""


@dataclass(frozen=True)
class Options:
    """What the command line says. What is empty does not restrict."""

    rows: tuple[str, ...] = ()
    exporters: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    jobs: int = os.cpu_count() or 1
    limit: float = 300
    resume: bool = False
    page_only: bool = False
    # Of numbered cases: how long, how many, from which number on, or one alone.
    seconds: float = 0
    cases: int = 0
    first: int = 0
    case: int | None = None

    def pick_rows(self, known: tuple[str, ...]) -> tuple[str, ...]:
        """The rows that were asked for, in the order of those that are known; all if none was."""
        if unknown := sorted(set(self.rows) - set(known)):
            raise NotRunnable(f"no such row: {', '.join(unknown)}")
        return tuple(name for name in known if name in (self.rows or known))


@dataclass(frozen=True)
class Measure:
    """One name of the command line.

    about   what is measured
    rows    what ROWS are
    writes  the files that a run writes; with ROWS, `partly`
    run     `module:function` that takes options and returns an exit code
    takes   the options beside ROWS that mean something here
    """

    name: str
    about: str
    rows: str
    writes: str
    partly: str
    run: str
    takes: frozenset[str] = frozenset({"resume"})

    def load(self) -> Callable[[Options], int]:
        function: Callable[[Options], int] = load_function(self.run)
        return function


@dataclass(frozen=True)
class Section:
    """A section of docs/measured/measured.md: `function` returns its table."""

    name: str
    about: str
    function: str


def load_function(name: str) -> Any:
    module, _, function = name.partition(":")
    return getattr(import_module(module), function)


# In the order of the page.
SECTIONS = (
    Section("coverage", "nodes by confidence, for every architecture", "measure.bench.exports:measure_coverage"),
    Section("record_size", "bytes of the embedded record", "measure.bench.exports:measure_record_size"),
    Section("startup", "time until a command is up", "measure.bench.reading:measure_startup"),
    Section("reading_time", "time of verbs that read a large file", "measure.bench.reading:measure_reading_time"),
    Section("trace_memory", "memory that recording a run takes", "measure.bench.trace_memory:measure_trace_memory"),
    Section("export_overhead", "time that tags add to an export", "measure.bench.exports:measure_export_overhead"),
    Section("deep_exports", "exports of 24 to 96 layers", "measure.bench.deep_exports:measure_deep_exports"),
    Section("structures", "models without weights", "measure.bench.structures:measure_structures"),
    Section("same_graphs", "graphs of the linear optimizer", "measure.bench.deep_exports:measure_same_graphs"),
    Section("large_files", "memory that 2 GB of weights take", "measure.bench.large_files:measure_large_files"),
    Section("verify_cost", "time that verify takes", "measure.bench.verifying:measure_verify_cost"),
    Section("seeded_faults", "whether verify names the faulty module", "measure.bench.verifying:measure_seeded_faults"),
    Section("quantized", "int8 against float, in both directions", "measure.bench.verifying:measure_quantized"),
    Section("relink_time", "time that relink takes", "measure.bench.two_graphs:measure_relink_time"),
    Section("profiled", "kernel time that is charged to modules", "measure.bench.module_costs:measure_profiled"),
    Section("diffed", "what diff says of known changes", "measure.bench.two_graphs:measure_diffed"),
    Section("diff_equal", "time of diff for a file and itself", "measure.bench.two_graphs:measure_diff_equal"),
    Section("flops", "FLOPs against PyTorch's counter", "measure.bench.module_costs:measure_flops"),
    Section("extracted", "every module call as a file of its own", "measure.bench.extracted:measure_extracted"),
    Section("selected", "nodes that a query keeps in float", "measure.bench.selected:measure_selected"),
    Section("folded", "repeated modules as functions, and back", "measure.bench.folded:measure_folded"),
    Section("round_trips", "what other viewers read back", "measure.bench.round_trips:measure_round_trips"),
    Section("page_speed", "time until a page is open and answers", "measure.bench.page_speed:measure_page_speed"),
)

MEASURES = (
    Measure(
        "bench",
        "what the documentation claims, a section for each claim",
        "sections",
        "docs/measured/measured.md",
        "these sections",
        "measure.sections:run_bench",
    ),
    Measure(
        "strategies",
        "every strategy on every architecture of the tests",
        "architectures",
        "the tables of docs/measured/strategies.md",
        "nothing; prints",
        "measure.sections:run_strategies",
    ),
    Measure(
        "corpus",
        "every model of the corpus, exported by all exporters that apply to it and verified",
        "rows of measure/corpus/models.toml",
        "docs/measured/corpus.md, measure/corpus/results.json",
        "the same, others as they were",
        "measure.corpus.corpus_run:run_measure",
        frozenset({"exporter", "family", "jobs", "limit", "resume", "page_only"}),
    ),
    Measure(
        "planted",
        "wrong attributions, planted in files of the corpus, and whether verify finds them",
        "rows of measure/corpus/models.toml",
        "docs/measured/planted-faults.md",
        "nothing; prints",
        "measure.planted.planted_run:run_measure",
        frozenset({"exporter", "jobs", "limit", "resume"}),
    ),
    Measure(
        "lineage",
        "every tool on models of the corpus, relinked and held against the truth",
        "rows of measure/corpus/models.toml",
        "docs/measured/lineage.md",
        "nothing; prints",
        "measure.lineage.lineage_run:run_measure",
        frozenset({"exporter", "tool", "jobs", "limit", "resume"}),
    ),
    Measure(
        "anyfile",
        "what is found in files without a record, against the record of the same export",
        "rows of measure/corpus/models.toml, ids of measure/anyfile/manifest.toml, or sections of the page",
        "docs/measured/any-file.md",
        "these sections; of rows and ids, nothing: prints",
        "measure.anyfile.anyfile_run:run_measure",
        frozenset({"exporter", "tool", "jobs", "limit", "resume"}),
    ),
    Measure(
        "generation",
        "tiny models that generate, exported as packages and run against `generate`",
        "families of measure/generation/families.toml, networks, or parts of the page",
        "docs/measured/generation.md, measure/generation/results.json and parts.json",
        "the same, others as they were",
        "measure.generation.generation_run:run_measure",
        frozenset({"jobs", "limit", "resume", "page_only"}),
    ),
    Measure(
        "fuzz",
        "mutated files of all kinds, read and transformed by every verb that needs no model",
        "verbs",
        "docs/measured/fuzzing.md",
        "nothing; prints, and so do runs with --seconds, or with --cases below 100,000",
        "measure.fuzzing.fuzz_run:run_measure",
        frozenset({"jobs", "seconds", "cases", "first", "case", "resume"}),
    ),
    Measure(
        "signals",
        "verbs that write, interrupted, ended and killed at chosen lines",
        "verbs",
        "docs/measured/signals.md",
        "nothing; prints",
        "measure.signals.signals_run:run_measure",
        frozenset(),
    ),
    Measure(
        "branches",
        "networks that branch on their inputs: whether export and verify notice, and false alarms on the corpus",
        "networks of measure/branches, rows of measure/corpus/models.toml",
        "docs/measured/branches.md",
        "nothing; prints",
        "measure.branches.branches_run:run_measure",
        frozenset(),
    ),
    Measure(
        "fleet",
        "fleets: speed on one and two workers, time and memory, seeded faults, resume, plans for many models",
        "parts of the page (speed, waiting, overhead, growth, faults, …) and rows of measure/corpus/models.toml",
        "docs/scale.md",
        "these parts, speed with these rows of the corpus",
        "measure.fleet.fleet_run:run_measure",
        frozenset({"page_only"}),
    ),
    Measure(
        "house",
        "size and shape of the package",
        "nothing",
        "docs/measured/house.md",
        "nothing",
        "measure.house:run_measure",
        frozenset(),
    ),
    Measure(
        "screenshots",
        "pictures of the page; needs chromium",
        "pictures",
        "docs/images",
        "these pictures",
        "measure.bench.screenshots:run_measure",
        frozenset(),
    ),
)
