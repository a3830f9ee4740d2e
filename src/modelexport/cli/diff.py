"""`modelexport diff`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, format_option, model_argument, output_option, spare_inputs, speech_options


@click.command()
@model_argument("left")
@model_argument("right")
@click.option(
    "--left-module", metavar="MODULE", help="Compare this module of LEFT alone; `block#2` is one call, `(model)` all."
)
@click.option("--right-module", metavar="MODULE", help="With this one of RIGHT; the same as that of LEFT if left out.")
@click.option("--no-weights", is_flag=True, help="Do not read large weights.")
@click.option("--cost/--no-cost", default=None, help="Count what modules that differ take; by default, if quick.")
@format_option("summary", "json", "html")
@output_option("Write to FILE instead of standard output.")
@speech_options
def diff(  # noqa: PLR0913 - one for each option
    *,
    left: Path,
    right: Path,
    left_module: str | None,
    right_module: str | None,
    no_weights: bool,
    cost: bool | None,
    form: str,
    output: Path | None,
    speech: Speech,
) -> int:
    """Show what changed from the file LEFT to the file RIGHT.

    \b
    modelexport diff v1.onnx v2.onnx
    modelexport diff bert.onnx bert.int8.onnx --format html -o diff.html
    modelexport diff bert.onnx bert.onnx --left-module encoder.layer.3 --right-module encoder.layer.4

    Nodes are paired by what they compute. Other names and another order are no difference. What is left is put into
    the module that it belongs to: nodes added, removed and replaced, attributes, shapes, types, weights, cost.

    \b
    exit codes  0  no differences
                1  the files differ
                2  a file or a module cannot be used, or the files have nothing in common
    """
    from modelexport.api.diff import diff as diff_files

    spare_inputs(output, left, right)
    found = diff_files(
        left, right, left_module=left_module, right_module=right_module, weights=not no_weights, cost=cost
    )
    if form == "json":
        from modelexport.views.diff_json import diff_json
        from modelexport.views.output import emit

        emit(diff_json(found), output)
    elif form == "html":
        from modelexport.views.diff_page import diff_page
        from modelexport.views.output import emit

        emit(diff_page(found), output)
    elif output is not None or not speech.quiet:
        from modelexport.views.diff_summary import diff_summary
        from modelexport.views.output import emit

        emit(diff_summary(found, verbose=speech.verbose), output)
    return 0 if found.identical else 1
