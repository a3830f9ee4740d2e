"""`modelexport view`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.cost import parsed_sizes
from modelexport.cli.options import Speech, model_argument, output_option, speech_options
from modelexport.views.printable import printable

_FILE = click.Path(path_type=Path)


@click.command()
@model_argument("model")
@output_option("Write the page to FILE; beside MODEL if it is left out.")
@click.option(
    "--overlay",
    "overlays",
    type=_FILE,
    multiple=True,
    metavar="FILE",
    help="What `profile` or `verify` wrote with --format json; repeatable.",
)
@click.option(
    "--against", type=_FILE, metavar="FILE", help="Colour modules by how they differ from those of this file."
)
@click.option(
    "--at", multiple=True, metavar="AXIS=SIZE,…", help="Sizes of axes that the file leaves open, for FLOPs; repeatable."
)
@click.option("--serve", is_flag=True, help="Serve the page on this machine instead of writing it.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, metavar="N", help="For --serve; 0 is any free one.")
@speech_options
def view(  # noqa: PLR0913 - one for each option
    *,
    model: Path,
    output: Path | None,
    overlays: tuple[Path, ...],
    against: Path | None,
    at: tuple[str, ...],
    serve: bool,
    port: int,
    speech: Speech,
) -> int:
    """Write one HTML page that shows MODEL: its modules, what they cost, what flows between them, how it is known.

    \b
    modelexport view bert.onnx
    modelexport view bert.onnx --overlay profile.json --overlay verify.json -o bert.html
    modelexport view v2.onnx --against v1.onnx --serve

    The page is one file that needs no server and no network. A model of more than 50,000 nodes is shown by modules
    alone.
    """
    if serve and output is not None:
        raise click.UsageError("--serve writes no file: give it or --output")
    if port and not serve:
        raise click.UsageError("--port is for --serve")
    from modelexport.api.view import make_page, serve_page
    from modelexport.api.view import view as view_file

    sizes = parsed_sizes(at)
    if serve:
        page = make_page(model, overlays=overlays, against=against, at=sizes)
        _remark(page.notes, speech)
        serve_page(page, port, lambda url: click.echo(f"{url}  (Ctrl-C ends)"))
        return 0
    result = view_file(model, output, overlays=overlays, against=against, at=sizes)
    _remark(result.page.notes, speech)
    if not speech.quiet:
        from modelexport.views.amounts import bytes_text

        click.echo(printable(f"wrote {result.path} ({bytes_text(result.size)})"))
    return 0


def _remark(notes: tuple[str, ...], speech: Speech) -> None:
    if not speech.quiet:
        for note in notes:
            click.echo(printable(f"note: {note}"), err=True)
