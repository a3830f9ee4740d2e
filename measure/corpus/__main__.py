"""Export and verify the corpus; write docs/corpus.md and corpus/results.json.

Exits with 1 where a row is not as corpus/models.toml says, or too few nodes are shown to belong to their module.
"""

from __future__ import annotations

import argparse
import os
import sys

from rich.console import Console

from measure.corpus.manifest import FAMILIES, read_rows
from measure.corpus.outcome import EXPORTERS
from measure.corpus.running import NotRunnable, Places, choose, run_corpus
from measure.corpus.workers import Workers


def main() -> int:
    options = _parser().parse_args()
    rows = read_rows()
    try:
        attempts = choose(rows, options.names, options.exporter, options.family)
        return run_corpus(rows, attempts, Workers(options.jobs, options.limit), Console(stderr=True), Places())
    except NotRunnable as error:
        sys.stderr.write(f"{error}\n")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m corpus", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="run these rows, and leave the others as they were")
    parser.add_argument("--exporter", action="append", default=[], choices=EXPORTERS)
    parser.add_argument("--family", action="append", default=[], choices=FAMILIES)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes at a time")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="a row is cut off after this time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
