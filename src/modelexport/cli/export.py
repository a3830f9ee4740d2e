"""`modelexport export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.export_options import export_options
from modelexport.cli.options import Speech, format_option, source_option, speech_options
from modelexport.cli.running import quiet_run, show_export
from modelexport.views.printable import printable


@click.command()
@source_option
@click.option("-o", "--output", metavar="FILE", required=True, type=click.Path(path_type=Path), help="The .onnx file.")
@export_options
@format_option("text", "json")
@speech_options
def export(model: str, output: Path, no_check: bool, form: str, speech: Speech, **options: Any) -> int:
    """Export MODEL to ONNX, and record which of its modules produced each node.

    Exits with 1 if the file's outputs differ from PyTorch's.
    """
    from modelexport.api.export import export as export_model

    with quiet_run(speech) as progress:
        result = export_model(model, output, no_check=no_check, verbose=speech.verbose, progress=progress, **options)
    show_export(result, form, speech)
    if result.check is None or result.check.ok:
        return 0
    if speech.quiet and form == "text":
        click.echo(f"error: {printable(result.check.message)}", err=True)
    return 1
