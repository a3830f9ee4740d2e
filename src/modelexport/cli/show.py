"""Verbs for other eyes: `view` (the HTML page), `convert` (the files of other viewers)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli import options as cli
from modelexport.cli import package as packages
from modelexport.cli.read import parse_sizes
from modelexport.errors import printable


@click.command()
@cli.model_argument("model")
@cli.target_option("Write the page to FILE; beside MODEL if it is left out.", required=False)
@cli.file_option(
    "--overlay", "overlays", help="What `profile` or `verify` wrote with --format json; repeatable.", multiple=True
)
@cli.file_option("--against", help="Colour modules by how they differ from those of this file.")
@click.option(
    "--at", multiple=True, metavar="AXIS=SIZE,…", help="Sizes of axes that the file leaves open, for FLOPs; repeatable."
)
@click.option("--serve", is_flag=True, help="Serve the page on this machine instead of writing it.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="For --serve; 0 is any free one.")
@cli.verbosity_options
def view(  # noqa: PLR0913 - one for each option
    *,
    model: Path,
    output: Path | None,
    overlays: tuple[Path, ...],
    against: Path | None,
    at: tuple[str, ...],
    serve: bool,
    port: int,
    verbosity: cli.Verbosity,
) -> int:
    """Write one HTML page that shows MODEL: its modules, what they cost, what flows between them, how it is known.

    \b
    modelexport view bert.onnx
    modelexport view bert.onnx --overlay profile.json --overlay verify.json -o bert.html
    modelexport view v2.onnx --against v1.onnx --serve
    modelexport view qwen3/ --at past_sequence=512

    The page is one file that needs no server and no network. That of a package has a switch between its files. A
    model of more than 50,000 nodes is shown by modules alone.
    """
    if serve and output is not None:
        raise click.UsageError("--serve writes no file: give it or --output")
    if port and not serve:
        raise click.UsageError("--port is for --serve")
    from modelexport.api.view import make_page, serve_page
    from modelexport.api.view import view as view_file

    sizes = parse_sizes(at)  # before the model is read
    source = packages.find_package(model) or model
    other = None if against is None else packages.find_package(against) or against
    if serve:
        page = make_page(source, overlays=overlays, against=other, at=sizes)
        cli.print_notes([f"note: {note}" for note in page.notes], verbosity)
        serve_page(page, port, lambda url: click.echo(f"{url}  (Ctrl-C ends)"))
        return 0
    result = view_file(source, output, overlays=overlays, against=other, at=sizes)
    cli.print_notes([f"note: {note}" for note in result.page.notes], verbosity)
    if not verbosity.quiet:
        from modelexport.show.text.console import bytes_text

        click.echo(printable(f"wrote {result.path} ({bytes_text(result.size)})"))
    return 0


@click.command()
@cli.model_argument("model")
# No click.Choice: an unknown format is answered with the nearest.
@click.option("--to", required=True, metavar="FORMAT", help="model-explorer, graphml, dot, mermaid, csv or netron.")
@cli.target_option("Write to FILE instead of standard output.", required=False)
@click.option(
    "--depth", type=click.IntRange(min=1), metavar="N", help="Draw modules so many levels deep; for dot and mermaid."
)
@cli.file_option(
    "--overlay",
    "overlays",
    help="What profile or verify wrote with --format json; repeatable; for model-explorer.",
    multiple=True,
)
@cli.file_option("--against", help="Another model to show beside this one; for model-explorer.")
@cli.force_option
@cli.verbosity_options
def convert(
    *,
    model: Path,
    to: str,
    output: Path | None,
    depth: int | None,
    force: bool,
    verbosity: cli.Verbosity,
    **beside: Any,
) -> int:
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

    No weights are read. A file without a record is grouped by the modules that it tells of itself. Of a package, every
    file is written, into the folder that -o names.
    """
    if (package := packages.find_package(model)) is not None:
        return packages.convert_files(package, output, to, verbosity, depth=depth, force=force, **beside)
    if output is None:
        notes = _print(model, to, depth, is_alone=not any(beside.values()))
    else:
        from modelexport.api.convert import convert as convert_file

        converted = convert_file(model, output, to, depth=depth, **beside)
        notes = (*converted.notes, *(f"wrote {path}" for path in converted.files))
    cli.print_notes(notes, verbosity)
    return 0


def _print(model: Path, to: str, depth: int | None, *, is_alone: bool) -> tuple[str, ...]:
    from modelexport.api.convert import convert_text

    if not is_alone:
        raise click.UsageError("--overlay and --against write further files: give the name of the first with -o")
    converted = convert_text(model, to, depth=depth)
    # As the parts come: the text of a large model is never in memory as a whole.
    for part in converted.parts:
        click.echo(part, nl=False)
    return converted.notes
