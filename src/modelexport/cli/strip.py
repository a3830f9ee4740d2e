"""`modelexport strip`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, model_argument, speech_options
from modelexport.views.amounts import bytes_text, counted
from modelexport.views.printable import printable


@click.command()
@model_argument("model")
@click.option(
    "-o", "--output", metavar="FILE", required=True, type=click.Path(path_type=Path), help="The file without them."
)
@click.option("--keep", multiple=True, metavar="KEY,…", help="Keys that stay; those below.")
@click.option("--exporter-metadata", is_flag=True, help="Also remove what torch writes on nodes.")
@speech_options
def strip(model: Path, output: Path, keep: tuple[str, ...], exporter_metadata: bool, speech: Speech) -> int:
    """Write MODEL without what this tool has put into it: the record, and the keys on its nodes.

    \b
    tag, module, modules, confidence, evidence, role, layer   keys on nodes
    record, outline                                           of the whole file

    Nodes, edges, attributes, weights and the metadata of others stay as they are.
    """
    from modelexport.api.strip import strip as strip_file

    names = [name.strip() for given in keep for name in given.split(",") if name.strip()]
    found = strip_file(model, output, keep=names, exporter_metadata=exporter_metadata)
    if not speech.quiet:
        for path in found.files:
            click.echo(printable(f"wrote {path} ({bytes_text(path.stat().st_size)})"))
        click.echo(f"{counted(found.removed, 'key')} removed" if found.removed else "there was nothing to remove")
        if found.absent:
            click.echo(f"note: the file has no {', '.join(found.absent)} that could be kept")
    return 0
