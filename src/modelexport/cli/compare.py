"""`modelexport diff`.

`modelexport verify`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from modelexport.cli.options import (
    Speech,
    format_option,
    model_argument,
    output_option,
    quiet_run,
    repeated_options,
    spare_inputs,
    speech_options,
)
from modelexport.errors import UserError
from modelexport.record.results.verification import Verification
from modelexport.show.text.verification_rows import Shown


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
        from modelexport.show.data.verification_and_diff import diff_json
        from modelexport.show.text.console import emit

        emit(diff_json(found), output)
    elif form == "html":
        from modelexport.show.page.diff_page import diff_page
        from modelexport.show.text.console import emit

        emit(diff_page(found), output)
    elif output is not None or not speech.quiet:
        from modelexport.show.text.console import emit
        from modelexport.show.text.diff import diff_summary

        emit(diff_summary(found, verbose=speech.verbose), output)
    return 0 if found.identical else 1


_FILE = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class _Report:
    """How the result is shown, and where it goes."""

    form: str
    output: Path | None
    sort: str | None
    top: int | None
    everything: bool


def _report_options(function: Callable[..., int]) -> Callable[..., int]:
    """These come to the verb as `report`."""

    @wraps(function)
    def with_report(
        *, form: str, output: Path | None, sort: str | None, top: int | None, everything: bool, **options: Any
    ) -> int:
        return function(report=_Report(form, output, sort, top, everything), **options)

    decorated: Callable[..., int] = with_report
    for option in (
        output_option("Write to FILE instead of standard output."),
        format_option("text", "json", "csv"),
        click.option("--all", "everything", is_flag=True, help="Show all modules."),
        click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show so many modules."),
        click.option(
            "--sort",
            type=click.Choice(["order", "lost"]),
            help="Modules in order of execution, or by lost SQNR.  [default: order; with --against, lost]",
        ),
    ):
        decorated = option(decorated)
    return decorated


@click.command()
@click.argument("file", metavar="FILE", type=_FILE)
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="The PyTorch model: a folder, a config.json, a hub id, or package.module:callable. "
    "With --against, it only makes the inputs.",
)
@click.option("--against", type=_FILE, metavar="OTHER", help="Another ONNX file of the same model to compare with.")
@repeated_options
@click.option(
    "--samples", type=click.IntRange(min=1), default=1, show_default=True, metavar="N", help="Make so many inputs."
)
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance; by the number format if not given.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance; by the number format if not given.")
@click.option("--min-sqnr", type=float, metavar="DB", help="Decibels that decide, in place of the tolerances.")
@click.option("--as-deployed", is_flag=True, help="Judge the graph that ONNX Runtime really runs, optimized.")
@click.option("--no-proof", is_flag=True, help="Compare numbers only; do not prove attributions.")
@_report_options
@speech_options
def verify(
    file: Path,
    inputs: tuple[Path, ...],
    against: Path | None,
    no_proof: bool,
    report: _Report,
    speech: Speech,
    **options: Any,
) -> int:
    """Check by values that FILE computes what its model computes, and that its nodes are credited to the right modules.

    \b
    modelexport verify bert.onnx -m ./bert
    modelexport verify int8.onnx --against fp32.onnx

    Both run on the same inputs, and what every module call is given and returns is compared. The first module whose
    inputs agree and whose outputs do not is named. Exits with 1 if numbers differ or an attribution is contradicted.
    """
    if options["model"] is None and against is None:
        raise UserError(
            f"there is nothing to compare {file} with",
            "Give the model that it was exported from (-m), or another file of the same model (--against).",
        )
    if report.everything and report.top is not None:
        raise UserError("--all and --top contradict each other", "Leave one of them out.")
    from modelexport.api.verify import verify as verify_file

    spare_inputs(report.output, file, *([against] if against else []), *inputs)
    with quiet_run(speech) as progress:
        found = verify_file(
            file, against=against, inputs=inputs or None, proof=not no_proof, progress=progress, **options
        )
    by_loss = report.sort == "lost" or (report.sort is None and against is not None)
    _show(found, report, Shown(by_loss, report.top, report.everything, speech.verbose), speech)
    return 0 if found.ok else 1


def _show(found: Verification, report: _Report, shown: Shown, speech: Speech) -> None:
    if report.form == "json":
        from modelexport.show.data.verification_and_diff import verification_json
        from modelexport.show.text.console import emit

        emit(verification_json(found), report.output)
    elif report.form == "csv":
        from modelexport.show.data.analysis import verification_csv
        from modelexport.show.text.console import emit

        emit(verification_csv(found), report.output)
    elif report.output is not None or not speech.quiet:
        from modelexport.show.text.console import show
        from modelexport.show.text.verification import verification_tables

        show(verification_tables(found, shown), report.output)
