"""`modelexport export`.

`modelexport attach`.

`modelexport strategies`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.options import (
    Speech,
    export_options,
    format_option,
    loading_options,
    output_option,
    quiet_run,
    show_export,
    source_option,
    spare_inputs,
    speech_options,
    tagging_options,
)
from modelexport.errors import printable


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


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@source_option
@loading_options
@format_option("text", "json")
@output_option("Write to FILE instead of standard output.")
@speech_options
def strategies(file: Path, model: str, form: str, output: Path | None, speech: Speech, **options: Any) -> int:
    """Judge FILE, which was made from MODEL, by every strategy: what each covers, where they agree, and where not."""
    from modelexport.api.attach import compare_strategies

    spare_inputs(output, file)
    with quiet_run(speech) as progress:
        scores = compare_strategies(file, model, progress=progress, **options)
    if form == "json":
        from modelexport.show.text.checks import scores_json
        from modelexport.show.text.console import emit

        emit(scores_json(scores), output)
    else:
        from modelexport.show.text.checks import score_tables
        from modelexport.show.text.console import show

        show(score_tables(scores), output)
    return 0
