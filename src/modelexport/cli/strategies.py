"""`modelexport strategies`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.export_options import loading_options
from modelexport.cli.options import (
    Speech,
    format_option,
    output_option,
    source_option,
    spare_inputs,
    speech_options,
)
from modelexport.cli.running import quiet_run


@click.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@source_option
@loading_options
@format_option("text", "json")
@output_option("Write to FILE instead of standard output.")
@speech_options
def strategies(file: Path, model: str, form: str, output: Path | None, speech: Speech, **options: Any) -> int:
    """Judge FILE, which was made from MODEL, by every strategy: what each covers, where they agree, and where not."""
    from modelexport.api.strategy_scores import compare_strategies

    spare_inputs(output, file)
    with quiet_run(speech) as progress:
        scores = compare_strategies(file, model, progress=progress, **options)
    if form == "json":
        from modelexport.views.output import emit
        from modelexport.views.score_tables import scores_json

        emit(scores_json(scores), output)
    else:
        from modelexport.views.console import show
        from modelexport.views.score_tables import score_tables

        show(score_tables(scores), output)
    return 0
