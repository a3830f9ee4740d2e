"""Measure everything, write docs/measured.md, exit 1 where a limit is missed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from measure.bench import (
    coverage,
    diffed,
    export_overhead,
    extracted,
    flops,
    folded,
    page_speed,
    profiled,
    quantized,
    record_size,
    relink_time,
    round_trips,
    seeded_faults,
    selected,
    startup,
    trace_memory,
    verify_cost,
)
from measure.bench.report import page, with_sections

PAGE = Path(__file__).parents[2] / "docs" / "measured.md"
MEASUREMENTS = {
    "coverage": coverage.measure,
    "record_size": record_size.measure,
    "startup": startup.measure,
    "trace_memory": trace_memory.measure,
    "export_overhead": export_overhead.measure,
    "verify_cost": verify_cost.measure,
    "seeded_faults": seeded_faults.measure,
    "quantized": quantized.measure,
    "relink_time": relink_time.measure,
    "profiled": profiled.measure,
    "diffed": diffed.measure,
    "flops": flops.measure,
    "extracted": extracted.measure,
    "selected": selected.measure,
    "folded": folded.measure,
    "round_trips": round_trips.measure,
    "page_speed": page_speed.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="NAME", help="measure these, and leave the rest of the page alone")
    only = parser.parse_args().only
    tables = [measure() for name, measure in MEASUREMENTS.items() if not only or name in only]
    PAGE.write_text(with_sections(PAGE.read_text(), tables) if only else page(tables))
    sys.stdout.write("\n".join(table.markdown() for table in tables))
    missed = [table.title for table in tables if not table.holds]
    if missed:
        sys.stderr.write(f"missed: {', '.join(missed)}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
