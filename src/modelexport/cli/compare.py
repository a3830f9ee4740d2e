"""Verbs that hold a file against another file or against its model: `compare`, `diff`, `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli import options as cli
from modelexport.cli import package as packages
from modelexport.errors import UserError
from modelexport.show.text.verification_rows import Shown


@click.command()
@cli.model_argument("a")
@cli.model_argument("b")
@cli.report_options("summary", "json")
def compare(a: Path, b: Path, report: cli.Report) -> int:
    """Show what differs between the files A and B, module by module.

    Modules are aligned by their path; all calls of a module count together. Packages are compared file by file. Exits
    with 1 if anything differs.
    """
    from modelexport.api.read import compare as compare_models
    from modelexport.show.text.checks import comparison_tables

    if (pair := packages.find_pair(a, b)) is not None:
        return packages.show_comparison(pair, report)
    cli.spare_inputs(report.output, a, b)
    comparison = compare_models(a, b)
    report.show_unless_quiet(comparison, lambda: comparison_tables(comparison, verbose=report.verbose))
    report.print_notes(comparison.notes)
    return 0 if comparison.identical else 1


@click.command()
@cli.model_argument("left")
@cli.model_argument("right")
@click.option(
    "--left-module", metavar="MODULE", help="Compare this module of LEFT alone; `block#2` is one call, `(model)` all."
)
@click.option("--right-module", metavar="MODULE", help="With this one of RIGHT; the same as that of LEFT if left out.")
@click.option("--no-weights", is_flag=True, help="Do not read large weights.")
@click.option("--cost/--no-cost", default=None, help="Count what modules that differ take; by default, if quick.")
@cli.report_options("summary", "json", "html")
def diff(left: Path, right: Path, no_weights: bool, report: cli.Report, **options: Any) -> int:
    """Show what changed from the file LEFT to the file RIGHT.

    \b
    modelexport diff v1.onnx v2.onnx
    modelexport diff bert.onnx bert.int8.onnx --format html -o diff.html
    modelexport diff bert.onnx bert.onnx --left-module encoder.layer.3 --right-module encoder.layer.4

    Nodes are paired by what they compute. Other names and another order are no difference. What is left is put into
    the module that it belongs to: nodes added, removed and replaced, attributes, shapes, types, weights, cost.
    Two packages are compared component by component.

    \b
    exit codes  0  no differences
                1  the files differ
                2  a file or a module cannot be used, or the files have nothing in common
    """
    from modelexport.api.diff import diff as diff_files
    from modelexport.show.page.difference import diff_html
    from modelexport.show.text.console import emit
    from modelexport.show.text.diff import diff_summary

    if (pair := packages.find_pair(left, right)) is not None:
        return packages.show_diff(pair, report, weights=not no_weights, **options)
    cli.spare_inputs(report.output, left, right)
    differences = diff_files(left, right, weights=not no_weights, **options)
    # Not by `report.show`: both texts are made of lines that are written as they are, without rich.
    if report.form == "html":
        emit(diff_html(differences), report.output, quiet=report.verbosity.quiet)
    elif report.form == "json":
        report.show(differences, lambda: ())
    elif report.is_wanted:
        emit(diff_summary(differences, verbose=report.verbose), report.output, quiet=report.verbosity.quiet)
    return 0 if differences.identical else 1


@click.command()
@cli.model_argument("file")
@cli.source_option(required=False, purpose="With --against, it only makes the inputs.")
@cli.file_option("--against", metavar="OTHER", help="Another ONNX file of the same model to compare with.")
@cli.repeated_options
@cli.samples_option(1)
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance; by the number format if not given.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance; by the number format if not given.")
@click.option("--min-sqnr", type=float, metavar="DB", help="Decibels that decide, in place of the tolerances.")
@click.option("--as-deployed", is_flag=True, help="Judge the graph that ONNX Runtime really runs, optimized.")
@cli.memory_option
@click.option("--no-proof", is_flag=True, help="Compare numbers only; do not prove attributions.")
@click.option("--no-branches", is_flag=True, help="Do not search for inputs that take another path through the model.")
@click.option(
    "--new-tokens", type=click.IntRange(min=1), metavar="N", help="Of a package: generate so many.  [default: 16]"
)
@click.option("--no-grid", is_flag=True, help="Of a package: no steps of other sizes.")
@click.option(
    "--sort",
    type=click.Choice(["order", "lost"]),
    help="Modules in order of execution, or by lost SQNR.  [default: order; with --against, lost]",
)
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Show so many modules.")
@click.option("--all", "everything", is_flag=True, help="Show all modules.")
@cli.report_options("text", "json", "csv")
def verify(  # noqa: PLR0913 - one for each option that is about what is shown
    *,
    file: Path,
    inputs: tuple[Path, ...],
    against: Path | None,
    no_proof: bool,
    no_branches: bool,
    new_tokens: int | None,
    no_grid: bool,
    sort: str | None,
    top: int | None,
    everything: bool,
    report: cli.Report,
    **options: Any,
) -> int:
    """Check by values that FILE computes what its model computes, and that its nodes are credited to the right modules.

    \b
    modelexport verify bert.onnx -m ./bert
    modelexport verify int8.onnx --against fp32.onnx
    modelexport verify qwen3/ -m ./qwen3 --new-tokens 16

    Both run on the same inputs, and what every module call is given and returns is compared. The first module whose
    inputs agree and whose outputs do not is named. Exits with 1 if numbers differ or an attribution is contradicted.

    Of a package, each file is checked, and then the files as a chain that generates: every step, every tensor of the
    cache, and the tokens.
    """
    # Before the imports below: a wrong call is answered at once, and not after torch has been imported.
    if options["model"] is None and against is None:
        raise UserError(
            f"there is nothing to compare {file} with",
            "Give the model that it was exported from (-m), or another file of the same model (--against).",
        )
    if everything and top is not None:
        raise UserError("--all and --top contradict each other", "Leave one of them out.")
    # Two files differ everywhere by a little: who loses most is the question then.
    by_loss = sort == "lost" or (sort is None and against is not None)
    shown = Shown(by_loss, top, everything, report.verbose)
    options |= {"against": against, "inputs": inputs or None, "proof": not no_proof, "branches": not no_branches}
    options |= {"new_tokens": new_tokens, "grid": not no_grid}
    if (package := packages.find_package(file)) is not None:
        return packages.show_verification(package, shown, report, **options)
    from modelexport.api.verify import verify as verify_file
    from modelexport.show.text.verification import verification_tables

    cli.spare_inputs(report.output, file, *([against] if against else []), *inputs)
    with cli.quiet_run(report.verbosity) as progress:
        result = verify_file(file, progress=progress, **options)
    report.show_unless_quiet(result, lambda: verification_tables(result, shown))
    return 0 if result.ok else 1
