"""`modelexport analyze`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, format_option, model_argument, output_option, spare_inputs, speech_options


@click.command()
@model_argument("model")
@format_option("summary", "detailed", "json", "csv")
@click.option("--filter-tag", metavar="TEXT", help="Only nodes whose tag contains TEXT, and their modules.")
@output_option("Write to FILE instead of standard output.")
@speech_options
def analyze(model: Path, form: str, filter_tag: str | None, output: Path | None, speech: Speech) -> int:
    """Show what MODEL consists of: modules with their nodes, parameters and operators, and how well each node is known.

    \b
    summary   module tree, coverage by confidence and evidence
    detailed  the same without abridgement, and a table of all nodes
    json      everything, as described by the published schema
    csv       one row for each node
    """
    from modelexport.api.reading import analyze as analyze_model

    spare_inputs(output, model)
    analysis = analyze_model(model, filter_tag)
    if form == "json":
        from modelexport.views.as_json import analysis_json
        from modelexport.views.output import emit

        emit(analysis_json(analysis), output)
    elif form == "csv":
        from modelexport.views.as_csv import analysis_csv
        from modelexport.views.output import emit

        emit(analysis_csv(analysis), output)
    else:
        from modelexport.views.analysis_tables import analysis_tables
        from modelexport.views.console import show

        show(analysis_tables(analysis, detailed=form == "detailed" or speech.verbose), output)
    return 0
