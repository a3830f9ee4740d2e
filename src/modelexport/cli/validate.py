"""`modelexport validate`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, format_option, model_argument, output_option, speech_options
from modelexport.errors import UserError


@click.command()
@model_argument("model")
@click.option("--check-consistency", is_flag=True, help="Also find attributions that dataflow rules out.")
@click.option("--repair", is_flag=True, help="First rewrite the keys on the nodes from the record.")
@output_option("Write the repaired model to FILE instead of MODEL.")
@format_option("text", "json")
@speech_options
def validate(
    model: Path,
    check_consistency: bool,
    repair: bool,
    output: Path | None,
    form: str,
    speech: Speech,
) -> int:
    """Check that MODEL is valid, that its record belongs to it, and that its tags agree with the record.

    Exits with 1 if there is an error.
    """
    if output is not None and not repair:
        raise UserError("--output says where the repaired model goes", "Add --repair.")
    from modelexport.api.reading import validate as validate_model

    validation = validate_model(model, check_consistency, repair, output)
    if form == "json":
        from modelexport.views.as_json import validation_json
        from modelexport.views.output import emit

        emit(validation_json(validation))
    elif not speech.quiet:
        from modelexport.views.console import show
        from modelexport.views.validation_tables import validation_tables

        show(validation_tables(validation, verbose=speech.verbose))
    return 0 if validation.ok else 1
