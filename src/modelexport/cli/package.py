"""Packages on the command line: what verbs show of a folder of files. Each verb hands over to one function here.

    modelexport analyze qwen3/      `analyze` in read.py parses, and calls `show_analysis` for a folder

A report never takes the place of a file of the package that it is about.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelexport.cli import options as cli
from modelexport.errors import UserError

if TYPE_CHECKING:
    from modelexport.api.package import Package
    from modelexport.api.package_writing import WrittenFolder
    from modelexport.show.text.verification_rows import Shown

    Pair = tuple[Package, Package]


def find_package(path: Path) -> Package | None:
    """The package in a folder; None for anything else, which the verb reads as a file."""
    from modelexport.api import package as api  # not by its name: that of the function here

    return api.find_package(path)


def find_pair(left: Path, right: Path) -> Pair | None:
    """Two packages; None if neither is one. One alone is an error."""
    from modelexport.api.package import find_packages

    return find_packages(left, right)


def ensure_package(path: Path) -> Package:
    from modelexport.api.package import open_package

    return open_package(path)


def show_analysis(package: Package, filter_tag: str | None, report: cli.Report) -> int:
    from modelexport.api.read import analyze
    from modelexport.show.text.package import package_analysis_tables

    cli.spare_inputs(report.output, *package.files)
    analysis = analyze(package, filter_tag)
    detailed = report.form == "detailed" or report.verbose
    report.show(analysis, lambda: package_analysis_tables(analysis, detailed=detailed))
    report.print_notes(analysis.notes)
    return 0


def show_validation(package: Package, report: cli.Report, **options: Any) -> int:
    from modelexport.api.read import validate
    from modelexport.show.text.package import package_validation_tables

    validation = validate(package, **options)
    report.show_unless_quiet(validation, lambda: package_validation_tables(validation, verbose=report.verbose))
    return 0 if validation.ok else 1


def show_cost(package: Package, sizes: dict[str, int], by: str, report: cli.Report, **tree: Any) -> int:
    from modelexport.api.read import cost as count_cost
    from modelexport.show.text.package import package_cost_tables

    cli.spare_inputs(report.output, *package.files)
    counted = count_cost(package, sizes)
    report.show(counted, lambda: package_cost_tables(counted, by=by, verbose=report.verbose, **tree), rows=f"{by}s")
    report.print_notes(counted.notes)
    return 0


def show_comparison(pair: Pair, report: cli.Report) -> int:
    from modelexport.api.read import compare
    from modelexport.show.text.package import package_comparison_tables

    cli.spare_inputs(report.output, *pair[0].files, *pair[1].files)
    comparison = compare(*pair)
    report.show_unless_quiet(comparison, lambda: package_comparison_tables(comparison, verbose=report.verbose))
    report.print_notes(dict.fromkeys(note for files in comparison.components.values() for note in files.notes))
    return 0 if comparison.identical else 1


def show_verification(package: Package, shown: Shown, report: cli.Report, **options: Any) -> int:
    from modelexport.api.verify import verify
    from modelexport.show.text.package_verification import package_verification_tables

    against = options.pop("against")
    other = None if against is None else ensure_package(against)
    inputs = options.pop("inputs")
    if inputs is not None and len(inputs) > 1:
        raise UserError("a package generates from one prompt, and several files were given", "Give one --inputs FILE.")
    cli.spare_inputs(report.output, *package.files, *(other.files if other else ()), *(inputs or ()))
    with cli.quiet_run(report.verbosity) as progress:
        result = verify(package, against=other, inputs=inputs and inputs[0], progress=progress, **options)
    report.show_unless_quiet(result, lambda: package_verification_tables(result, shown))
    return 0 if result.ok else 1


def show_profile(package: Package, report: cli.Report, tree: dict[str, Any], **options: Any) -> int:
    from modelexport.api.profile import profile
    from modelexport.show.text.package import package_profile_tables

    if options.pop("trace") is not None:
        raise UserError("a package is run often, and --trace is about one run of a file", "Profile one of its files.")
    cli.spare_inputs(report.output, *package.files)
    with cli.quiet_run(report.verbosity) as progress:
        result = profile(package, progress=progress, **options)
    report.show_unless_quiet(result, lambda: package_profile_tables(result, verbose=report.verbose, **tree))
    return 0 if result.ok else 1


def show_diff(pair: Pair, report: cli.Report, **options: Any) -> int:
    from modelexport.api.diff import diff
    from modelexport.show.page.difference import package_diff_html
    from modelexport.show.text.console import emit
    from modelexport.show.text.package import package_diff_summary, pair_lines

    cli.spare_inputs(report.output, *pair[0].files, *pair[1].files)
    differences = diff(*pair, **options)
    if report.form == "html":
        page = package_diff_html(differences.left, differences.right, differences.components, pair_lines(differences))
        emit(page, report.output, quiet=report.verbosity.quiet)
    elif report.form == "json":
        report.show(differences, lambda: ())
    elif report.is_wanted:
        emit(package_diff_summary(differences, verbose=report.verbose), report.output, quiet=report.verbosity.quiet)
    return 0 if differences.identical else 1


def convert_files(package: Package, output: Path | None, to: str, verbosity: cli.Verbosity, **options: Any) -> int:
    from modelexport.api.convert import convert

    if output is None:
        raise UserError("a package is written as several files", "Say which folder they go to: -o FOLDER.")
    against = options.pop("against")
    other = None if against is None else find_package(against) or against
    print_written(convert(package, output, to, against=other, **options), verbosity)
    return 0


def print_written(written: WrittenFolder, verbosity: cli.Verbosity) -> None:
    paths = [path for files in written.files.values() for path in files]
    cli.print_notes([*(f"wrote {path}" for path in paths), *written.notes], verbosity)
