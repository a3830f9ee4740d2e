"""`modelexport attach`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.export_options import loading_options, tagging_options
from modelexport.cli.options import Speech, format_option, source_option, speech_options
from modelexport.cli.running import quiet_run, show_export


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@source_option
@click.option("-o", "--output", metavar="FILE", required=True, type=click.Path(path_type=Path), help="The tagged file.")
@loading_options
@click.option(
    "--strategy",
    default="all",
    show_default=True,
    metavar="NAME",
    help="How nodes are attributed: all, enhanced_semantic, htp, fx_graph, usage_based or universal.",
)
@tagging_options
@format_option("text", "json")
@speech_options
def attach(file: Path, model: str, output: Path, form: str, speech: Speech, **options: Any) -> int:
    """Find out which module of MODEL made each node of FILE, which another tool exported, and write a tagged copy.

    MODEL runs once and so does FILE: what they compute and the weights that they have in common tell the nodes apart.
    Names in FILE are used where they help, and not needed.
    """
    from modelexport.api.attach import attach as attach_model

    with quiet_run(speech) as progress:
        result = attach_model(file, model, output, progress=progress, **options)
    show_export(result, form, speech)
    return 0
