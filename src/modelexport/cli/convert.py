"""`modelexport convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.options import Speech, model_argument, output_option, speech_options
from modelexport.views.printable import printable

_FILE = click.Path(path_type=Path)


@click.command()
@model_argument("model")
# Not a choice: an unknown format is answered with the nearest.
@click.option("--to", required=True, metavar="FORMAT", help="model-explorer, graphml, dot, mermaid, csv or netron.")
@output_option("Write to FILE instead of standard output.")
@click.option(
    "--depth", type=click.IntRange(min=1), metavar="N", help="Draw modules so many levels deep; for dot and mermaid."
)
@click.option(
    "--overlay",
    "overlays",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="What profile or verify wrote with --format json; repeatable; for model-explorer.",
)
@click.option(
    "--against", type=_FILE, metavar="FILE", help="Another model to show beside this one; for model-explorer."
)
@speech_options
def convert(*, model: Path, to: str, output: Path | None, depth: int | None, speech: Speech, **beside: Any) -> int:
    """Write MODEL as other viewers show it, grouped by module.

    \b
    modelexport convert bert.onnx --to model-explorer -o bert.json --overlay profile.json
    modelexport convert bert.onnx --to graphml -o bert.graphml
    modelexport convert bert.onnx --to mermaid --depth 2

    \b
    model-explorer  graphs for Model Explorer; beside them, node data for each overlay and a file for two models
    graphml         every node, edge and attribute, nested by module
    dot, mermaid    modules as clusters; if there are too many nodes to draw, modules only
    csv             one row for each node
    netron          a copy of the model whose nodes are named after their modules

    No weights are read. A file without a record is converted as well; its nodes are not grouped.
    """
    if output is None:
        notes = _print(model, to, depth, is_alone=not any(beside.values()))
    else:
        from modelexport.api.convert import convert as convert_file

        converted = convert_file(model, output, to, depth=depth, **beside)
        notes = (*converted.notes, *(f"wrote {path}" for path in converted.files))
    if not speech.quiet:
        for note in notes:
            click.echo(printable(note), err=True)
    return 0


def _print(model: Path, to: str, depth: int | None, *, is_alone: bool) -> tuple[str, ...]:
    from modelexport.api.convert import convert_text

    if not is_alone:
        raise click.UsageError("--overlay and --against write further files: give the name of the first with -o")
    converted = convert_text(model, to, depth=depth)
    for part in converted.parts:
        click.echo(part, nl=False)
    return converted.notes
