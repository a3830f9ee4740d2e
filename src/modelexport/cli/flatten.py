"""`modelexport flatten`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, format_option, model_argument, speech_options


@click.command()
@model_argument("model")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="Write the flat file."
)
@format_option("text", "json")
@speech_options
def flatten(model: Path, output: Path, form: str, speech: Speech) -> int:
    """Put functions in the place of their calls.

    \b
    modelexport flatten folded.onnx -o flat.onnx

    A file that `modelexport fold` wrote becomes exactly what it was: nodes, names, metadata, order and record. In other
    files, what is inside of a function gets the name of the call before its own.
    """
    from modelexport.api.flatten import flatten as flatten_file

    found = flatten_file(model, output)
    if form == "json":
        from modelexport.views.folding_summary import flattening_json
        from modelexport.views.output import emit

        emit(flattening_json(found.files, found.flattening))
    elif not speech.quiet:
        from modelexport.views.console import show
        from modelexport.views.folding_summary import flattening_lines

        show(flattening_lines(found.files, found.flattening))
    return 0
