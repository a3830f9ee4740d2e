"""`modelexport export`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelexport.cli.export_options import export_options
from modelexport.cli.options import Speech, format_option, speech_options
from modelexport.views.printable import printable

if TYPE_CHECKING:
    from modelexport.api.options import ExportResult


@click.command()
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    required=True,
    help="A folder, a config.json, a hub id, or package.module:callable.",
)
@click.option("-o", "--output", metavar="FILE", required=True, type=click.Path(path_type=Path), help="The .onnx file.")
@export_options
@format_option("text", "json")
@speech_options
def export(model: str, output: Path, no_check: bool, form: str, speech: Speech, **options: Any) -> int:
    """Export MODEL to ONNX, and record which of its modules produced each node.

    Exits with 1 if the file's outputs differ from PyTorch's.
    """
    from modelexport.api.export import export as export_model

    with warnings.catch_warnings(), _progress(speech) as progress:
        if not speech.verbose:
            warnings.simplefilter("ignore")  # exporters warn about themselves; what matters comes as notes
        result = export_model(model, output, no_check=no_check, verbose=speech.verbose, progress=progress, **options)
    _show(result, form, speech)
    if result.check is None or result.check.ok:
        return 0
    if speech.quiet and form == "text":
        click.echo(f"error: {printable(result.check.message)}", err=True)
    return 1


def _progress(speech: Speech) -> AbstractContextManager[Callable[[str], None] | None]:
    if speech.quiet or not sys.stderr.isatty():
        return nullcontext()
    from modelexport.views.progress import shown_progress

    return shown_progress()


def _show(result: ExportResult, form: str, speech: Speech) -> None:
    from modelexport.views.export_summary import ExportSummary, export_json, export_lines

    summary = ExportSummary(result.files, result.provenance, result.check, result.notes, result.seconds)
    if form == "json":
        from modelexport.views.output import emit

        emit(export_json(summary))
    elif not speech.quiet:
        from modelexport.views.console import show

        show(export_lines(summary, verbose=speech.verbose))
