"""Verbs that tag a file by running its PyTorch model: `export`, `attach`, `strategies`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli import options as cli
from modelexport.errors import printable_line
from modelexport.record.limits import MESSAGE_CHARACTERS
from modelexport.record.results.files import PackageExport


@click.command()
@cli.source_option()
@cli.target_option("The .onnx file, or a folder for a package of several files.")
@cli.export_options
@cli.report_options("text", "json", to_file=False)
def export(model: str, output: Path, no_check: bool, report: cli.Report, **options: Any) -> int:
    """Export MODEL to ONNX, and record which of its modules produced each node.

    \b
    modelexport export -m ./bert  -o bert.onnx                                    one forward pass
    modelexport export -m ./qwen3 -o qwen3.onnx --task text-generation-with-past  a decoder with its cache
    modelexport export -m ./qwen3 -o qwen3/ --target genai                        a folder that a consumer loads

    Exits with 1 if the outputs of a file differ from PyTorch's, or if it is not what was asked for.
    """
    from modelexport.api.export import export as export_model
    from modelexport.api.package import Package
    from modelexport.show.text.written_files import export_lines, package_export_lines

    with cli.quiet_run(report.verbosity) as progress:
        result: Any = export_model(
            model, output, no_check=no_check, verbose=report.verbose, progress=progress, **options
        )
    if isinstance(result, Package):
        written = PackageExport(result.folder, result.info, result.exported)
        report.show_unless_quiet(written, lambda: package_export_lines(written, verbose=report.verbose))
        results = [*result.exported.values()]
    else:
        report.show_unless_quiet(result, lambda: export_lines(result, verbose=report.verbose))
        results = [result]
    # None: with --no-check nothing was compared, and nothing is claimed.
    wrong = [item.check.message for item in results if item.check is not None and not item.check.ok]
    wrong += [f"not as asked: {unmet.asked}: {unmet.done}" for item in results for unmet in item.unmet]
    if wrong and report.verbosity.quiet and report.form == "text":
        # The exit code alone would not say why.
        click.echo(printable_line(f"error: {'; '.join(wrong)}", MESSAGE_CHARACTERS), err=True)
    return 1 if wrong else 0


@click.command()
@cli.model_argument("file")
@click.option(
    "-m",
    "--model",
    metavar="FOLDER",
    type=click.Path(path_type=Path),
    help="The checkpoint: a folder with safetensors. Default: the folder of FILE.",
)
@cli.target_option("The file with its weights.")
@cli.storage_options
@cli.report_options("text", "json", to_file=False)
def fill(file: Path, output: Path, report: cli.Report, **options: Any) -> int:
    """Put the weights of a checkpoint into FILE, which was exported with --no-weights.

    \b
    modelexport export -m ./llama --no-weights -o structure.onnx
    modelexport fill structure.onnx -m ./llama -o llama.onnx

    Weights are read, cast, transposed and written some rows at a time: memory does not grow with them. What comes out
    is the file that `export` writes. A checkpoint with other tensors than those FILE was exported from is refused.
    """
    from modelexport.api.fill import fill as fill_file
    from modelexport.show.text.written_files import filling_lines

    with cli.quiet_run(report.verbosity) as progress:
        result = fill_file(file, output, progress=progress, **options)
    report.show_unless_quiet(result, lambda: filling_lines(result))
    return 0


@click.command()
@cli.model_argument("file")
@cli.source_option(required=False, purpose="Without it, FILE itself is asked.")
@cli.target_option("The tagged file.")
@cli.loading_options
@cli.preset_option(
    "--strategy",
    "all",
    "How nodes are attributed: all, enhanced_semantic, htp, fx_graph, usage_based or universal.",
    metavar="NAME",
)
@cli.tagging_options
@cli.memory_option
@cli.force_option
@cli.report_options("text", "json", to_file=False)
def attach(file: Path, model: str | None, output: Path, report: cli.Report, **options: Any) -> int:
    """Find out which module of MODEL made each node of FILE, which another tool exported, and write a tagged copy.

    MODEL runs once and so does FILE: what they compute and the weights that they have in common tell the nodes apart.
    Names in FILE are used where they help, and not needed.

    \b
    modelexport attach yolo.onnx -m ./yolo -o tagged.onnx     by values
    modelexport attach yolo.onnx -o tagged.onnx               by what FILE says itself
    modelexport attach builder-out/ -m ./qwen3 -o tagged/     a folder becomes a package

    FILE may be a folder that onnxruntime-genai's builder, optimum or transformers' exporter wrote.

    Without a MODEL, the record is what metadata, names and structure of FILE tell of its modules, and nothing is run.
    A FILE of an IR version below 10 keeps it: the record is then in its metadata, and there are no keys on nodes.
    """
    from modelexport.api.attach import attach as attach_model
    from modelexport.api.package import Package
    from modelexport.show.text.written_files import export_lines, package_export_lines

    with cli.quiet_run(report.verbosity) as progress:
        result: Any = attach_model(file, model, output, progress=progress, **options)
    if isinstance(result, Package):
        written = PackageExport(result.folder, result.info, result.exported)
        report.show_unless_quiet(written, lambda: package_export_lines(written, verbose=report.verbose))
    else:
        report.show_unless_quiet(result, lambda: export_lines(result, verbose=report.verbose))
    return 0


@click.command()
@cli.model_argument("file")
@cli.source_option()
@cli.loading_options
@cli.report_options("text", "json")
def strategies(file: Path, model: str, report: cli.Report, **options: Any) -> int:
    """Judge FILE, which was made from MODEL, by every strategy: what each covers, where they agree, and where not."""
    from modelexport.api.attach import compare_strategies
    from modelexport.show.text.checks import score_tables

    cli.spare_inputs(report.output, file)
    with cli.quiet_run(report.verbosity) as progress:
        scores = compare_strategies(file, model, progress=progress, **options)
    report.show(scores, lambda: score_tables(scores))
    return 0
