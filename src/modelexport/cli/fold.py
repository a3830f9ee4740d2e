"""`modelexport fold`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, format_option, model_argument, speech_options


@click.command()
@model_argument("model")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="Write the folded file."
)
@click.option(
    "--class",
    "classes",
    metavar="CLASS",
    multiple=True,
    help="Fold modules of this class only, also if there is one; can be given several times.",
)
@format_option("text", "json")
@speech_options
def fold(model: Path, output: Path, classes: tuple[str, ...], form: str, speech: Speech) -> int:
    """Make the modules of MODEL that repeat into ONNX functions, nested as the modules are.

    \b
    modelexport fold bert.onnx -o folded.onnx
    modelexport fold bert.onnx -o folded.onnx --class BertLayer --class BertAttention

    Modules that do the same share one function; their weights are its inputs. The folded file runs as the flat one
    does, and `modelexport flatten` makes it exactly what it was.
    """
    from modelexport.api.fold import fold as fold_file

    found = fold_file(model, output, classes=classes)
    if form == "json":
        from modelexport.views.folding_summary import folding_json
        from modelexport.views.output import emit

        emit(folding_json(found.files, found.folding))
    elif not speech.quiet:
        from modelexport.views.console import show
        from modelexport.views.folding_summary import folding_lines

        show(folding_lines(found.files, found.folding, verbose=speech.verbose))
    return 0
