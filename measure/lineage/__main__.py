"""Run every tool on every model, relink what comes out, and write docs/lineage.md.

Exits with 1 where a figure misses its target. With names of rows, prints and writes nothing to the page.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from measure.corpus.outcome import EXPORTERS
from measure.lineage.page import PAGE, page, targets
from measure.lineage.plan import CHAINS, ROWS
from measure.lineage.running import Export, Workers
from measure.lineage.score import Result

_WORK = Path(__file__).parents[2] / "build" / "lineage"


def main() -> int:
    options = _parser().parse_args()
    if not options.resume:
        shutil.rmtree(_WORK, ignore_errors=True)
    exports = [Export(row, exporter) for row in options.rows or ROWS for exporter in options.exporter or EXPORTERS]
    results: list[Result] = []
    for found in Workers(options.tool or CHAINS, _WORK, options.jobs).run(exports):
        results += found
        _tell(found, len(results) // len(found), len(exports))
    if not (options.rows or options.tool or options.exporter):
        order = {export: place for place, export in enumerate(exports)}
        results.sort(key=lambda one: order[Export(one.row, one.exporter)])
        PAGE.write_text(page(results), encoding="utf-8")
    return _verdict([result for result in results if result.scores])


def _tell(found: Sequence[Result], number: int, of: int) -> None:
    sys.stderr.write(f"{number} of {of}: {found[0].row}, {found[0].exporter}\n")
    for result in found:
        for line in result.wrong:
            sys.stderr.write(f"  {result.chain}: {line}\n")


def _verdict(made: Sequence[Result]) -> int:
    found = targets(made) if made else []
    for target in found:
        sys.stdout.write(f"{'ok' if target.holds else 'MISSED':6} {target.what}: {target.measured} ({target.wanted})\n")
    return 0 if all(target.holds for target in found) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m matrix", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows of the corpus; else those of matrix/plan.py")
    parser.add_argument("--exporter", action="append", default=[], choices=EXPORTERS)
    parser.add_argument(
        "--tool", action="append", default=[], metavar="CHAIN", help="a tool or a chain, as int8+ort:all"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes at a time")
    parser.add_argument("--resume", action="store_true", help="keep the results of a run that was interrupted")
    return parser


if __name__ == "__main__":
    sys.exit(main())
