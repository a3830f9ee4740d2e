"""What the verbs that run a model have in common."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modelexport.cli.options import Speech

if TYPE_CHECKING:
    from modelexport.api.options import ExportResult


@contextmanager
def quiet_run(speech: Speech) -> Iterator[Callable[[str], None] | None]:
    """Keep other tools' warnings to themselves, and show on a terminal which step is running."""
    with warnings.catch_warnings():
        if not speech.verbose:
            warnings.simplefilter("ignore")  # exporters warn about themselves; what matters comes as notes
        if speech.quiet or not sys.stderr.isatty():
            yield None
            return
        from modelexport.views.progress import shown_progress

        with shown_progress() as progress:
            yield progress


def show_export(result: ExportResult, form: str, speech: Speech) -> None:
    from modelexport.views.export_summary import ExportSummary, export_json, export_lines

    summary = ExportSummary(result.files, result.provenance, result.check, result.notes, result.seconds)
    if form == "json":
        from modelexport.views.output import emit

        emit(export_json(summary))
    elif not speech.quiet:
        from modelexport.views.console import show

        show(export_lines(summary, verbose=speech.verbose))
