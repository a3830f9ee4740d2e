"""`modelexport extract`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.export_options import loading_options
from modelexport.cli.options import Speech, format_option, speech_options
from modelexport.cli.running import quiet_run
from modelexport.errors import UserError
from modelexport.record.extraction import TOLERANCE

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("file", metavar="FILE", type=_FILE)
@click.argument("modules", metavar="MODULE|QUERY...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", type=_FILE, required=True, help="The file to write.")
@click.option("--verify", is_flag=True, help="Compare it with the PyTorch module; needs -m.")
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="The PyTorch model: a folder, a config.json, a hub id, or package.module:callable. Implies --verify.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help=f"Absolute and relative, for --verify; {TOLERANCE:g} if not given, more for types with few bits.",
)
@click.option(
    "--embed",
    type=click.Choice(["full", "lean", "none"]),
    default="full",
    show_default=True,
    help="How much is written into the file: keys on nodes and the record, the record, or nothing.",
)
@loading_options
@format_option("text", "json")
@speech_options
def extract(
    file: Path, modules: tuple[str, ...], output: Path, verify: bool, form: str, speech: Speech, **options: Any
) -> int:
    """Write a part of FILE as a file of its own: a module, a call of one, several modules, or what a query means.

    \b
    modelexport extract bert.onnx encoder.layer.0.attention -o attention.onnx --verify -m ./bert
    modelexport extract albert.onnx encoder.albert_layer_groups.0#2 -o third.onnx
    modelexport extract bert.onnx 'role=attention.* & layer=0' -o attention.onnx

    With --verify, the file is fed the tensors that the PyTorch module received and compared with what that returned.
    Exits with 1 if they differ, with 2 if the module cannot be cut out; the smallest cut that exists is then named.
    """
    if verify and options["model"] is None:
        raise UserError("--verify needs the model that the file was exported from", "Give it: -m MODEL.")
    from modelexport.api.extract import extract as extract_part

    with quiet_run(speech) as progress:
        found = extract_part(file, modules, output, progress=progress, **options)
    if form == "json":
        from modelexport.views.extraction_summary import extraction_json
        from modelexport.views.output import emit

        emit(extraction_json(found))
    elif not speech.quiet:
        from modelexport.views.console import show
        from modelexport.views.extraction_summary import extraction_lines

        show(extraction_lines(found, verbose=speech.verbose))
    return 0 if found.ok else 1
