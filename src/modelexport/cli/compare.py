"""`modelexport compare`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, format_option, model_argument, output_option, spare_inputs, speech_options


@click.command()
@model_argument("a")
@model_argument("b")
@format_option("summary", "json")
@output_option("Write to FILE instead of standard output.")
@speech_options
def compare(a: Path, b: Path, form: str, output: Path | None, speech: Speech) -> int:
    """Show what differs between the files A and B, module by module.

    Modules are aligned by their path; all calls of a module count together. Exits with 1 if anything differs.
    """
    from modelexport.api.reading import compare as compare_models

    spare_inputs(output, a, b)
    comparison = compare_models(a, b)
    if form == "json":
        from modelexport.views.as_json import comparison_json
        from modelexport.views.output import emit

        emit(comparison_json(comparison), output)
    elif output is not None or not speech.quiet:
        from modelexport.views.comparison_tables import comparison_tables
        from modelexport.views.console import show

        show(comparison_tables(comparison, verbose=speech.verbose), output)
    return 0 if comparison.identical else 1
