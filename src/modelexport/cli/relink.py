"""`modelexport relink`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelexport.cli.options import Speech, format_option, speech_options
from modelexport.cli.running import quiet_run

if TYPE_CHECKING:
    from modelexport.api.relink import RelinkResult
    from modelexport.views.lineage_summary import LineageSummary

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("files", metavar="[BEFORE] AFTER", type=_FILE, nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", type=_FILE, help="Write AFTER with its new record.")
@click.option("--tool", default="", metavar="NAME", help="Who made AFTER; it is written into the evidence.")
@click.option(
    "--embed",
    type=click.Choice(["full", "lean", "none"]),
    default="full",
    show_default=True,
    help="How much is written into the file: keys on nodes and the record, the record, or nothing.",
)
@format_option("text", "json")
@speech_options
def relink(files: tuple[Path, ...], output: Path | None, tool: str, embed: str, form: str, speech: Speech) -> int:
    """Find out which module each node of AFTER belongs to, which an optimizer or quantizer made of BEFORE.

    \b
    modelexport relink bert.onnx bert.opt.onnx -o bert.opt.tagged.onnx
    modelexport relink bert.int8.onnx -o bert.int8.tagged.onnx

    BEFORE is a tagged file. Without it, what `export` planted in the file takes its place. Exits with 1 if the files
    have nothing to do with each other, and if weights of the same name differ.
    """
    if len(files) > 2:
        raise click.UsageError("give one file, or the one before and the one after")
    from modelexport.api.relink import relink as relink_file

    with quiet_run(speech) as progress:
        found = relink_file(
            files[-1], output, before=files[0] if len(files) > 1 else None, tool=tool, embed=embed, progress=progress
        )
    show_relinked(found, str(files[-1]), form, speech)
    return 0 if found.ok else 1


def show_relinked(found: RelinkResult, after: str, form: str, speech: Speech) -> None:
    from modelexport.views.lineage_summary import lineage_json, lineage_lines

    summary = lineage_summary(found, after)
    if form == "json":
        from modelexport.views.output import emit

        emit(lineage_json(summary))
    elif not speech.quiet:
        from modelexport.views.console import show

        show(lineage_lines(summary, verbose=speech.verbose))


def lineage_summary(found: RelinkResult, after: str) -> LineageSummary:
    from modelexport.views.lineage_summary import LineageSummary

    return LineageSummary(
        after,
        found.before,
        found.files,
        found.lineage,
        found.provenance,
        found.related,
        found.differing,
        found.seconds,
        found.idle,
    )
