"""Verbs about what a tool makes of a tagged file: `relink`, `run-tool`, `quantize`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelexport.cli import options as cli

if TYPE_CHECKING:
    from rich.console import RenderableType

# The names of `QuantType` in onnxruntime.quantization, less their Q, in lower case; float8 is QFLOAT8E4M3FN.
_TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "float8")


_component_option = click.option(
    "--component", multiple=True, metavar="NAME", help="Of a package, only this one; others are copied. Repeatable."
)


def _show_change(made: Any, report: cli.Report, show_file: Callable[..., Iterator[RenderableType]]) -> int:
    """Print what a tool made of a file, or of each component of a package (PackageChange); the exit code."""
    from modelexport.record.results.files import PackageChange
    from modelexport.show.text.written_files import package_change_lines

    if isinstance(made, PackageChange):
        report.show_unless_quiet(made, lambda: package_change_lines(made, show_file, verbose=report.verbose))
    else:
        report.show_unless_quiet(made, lambda: show_file(made, verbose=report.verbose))
    return 0 if made.ok else 1


def _list_tools(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    """All tools, what they do, and whether they are installed; instead of running one."""
    if not wanted or context.resilient_parsing:
        return
    from modelexport.api.run_tool import list_tools
    from modelexport.show.text.console import show
    from modelexport.show.text.written_files import tool_table

    show([tool_table(list_tools())])
    context.exit()


@click.command()
@click.argument("files", metavar="[BEFORE] AFTER", type=click.Path(path_type=Path), nargs=-1, required=True)
@cli.target_option("Write AFTER with its new record.", required=False)
@_component_option
@cli.force_option
@click.option("--tool", default="", metavar="NAME", help="Who made AFTER; it is written into the evidence.")
@cli.embed_option()
@cli.report_options("text", "json", to_file=False)
def relink(
    *,
    files: tuple[Path, ...],
    output: Path | None,
    component: tuple[str, ...],
    report: cli.Report,
    **options: Any,
) -> int:
    """Find out which module each node of AFTER belongs to, which an optimizer or quantizer made of BEFORE.

    \b
    modelexport relink bert.onnx bert.opt.onnx -o bert.opt.tagged.onnx
    modelexport relink bert.int8.onnx -o bert.int8.tagged.onnx
    modelexport relink qwen3/ optimized/ -o tagged/

    BEFORE is a tagged file. Without it, what `export` planted in the file takes its place. Both may be packages: then
    every component is linked to that of the same name. Exits with 1 if the files have nothing to do with each other,
    and if weights of the same name differ.
    """
    if len(files) > 2:
        raise click.UsageError("give one file, or the one before and the one after")
    from modelexport.api.relink import relink as relink_file
    from modelexport.show.text.written_files import lineage_lines

    before = files[0] if len(files) > 1 else None  # else what `export` planted in the file
    with cli.quiet_run(report.verbosity) as progress:
        made = relink_file(files[-1], output, before=before, components=component, progress=progress, **options)
    return _show_change(made, report, lineage_lines)


@click.command("run-tool")
@cli.model_argument("file")
@click.option("--tool", required=True, metavar="NAME", help="One of those below, or several: int8+ort:all.")
@click.option("--list", is_flag=True, is_eager=True, expose_value=False, callback=_list_tools, help="List all tools.")
@cli.target_option("The tagged file, or the folder for a package.")
@_component_option
@cli.force_option
@cli.file_option("--inputs", help="An .npz file with inputs, for quantizers and for the check.")
@cli.made_input_options(samples=4)
@click.option("--no-check", is_flag=True, help="Do not run what the tool made.")
@cli.embed_option("As for relink.")
@cli.report_options("text", "json", to_file=False)
def run_tool(
    *,
    file: Path,
    output: Path,
    component: tuple[str, ...],
    no_check: bool,
    report: cli.Report,
    **options: Any,
) -> int:
    """Run an optimizer, converter or quantizer on a tagged FILE, and carry its record to what comes out.

    FILE may be a package: then the tool runs on every component, and what comes out is a package.

    \b
    ort:all, ort:extended, ort:basic         ONNX Runtime's optimizer
    transformers, transformers:gpt2          its optimizer for transformers
    onnxslim, onnxsim, onnxoptimizer         other optimizers
    onnxscript, ort_fusions                  onnxscript's optimizer, its fusions for ONNX Runtime
    opset:21, onnxscript_opset:21            version converters
    int8, qdq, qoperator, int4               quantizers
    fp16, fp16_common                        converters to half precision
    shapes                                   symbolic shape inference
    """
    from modelexport.api.run_tool import run_tool as run
    from modelexport.show.text.written_files import lineage_lines

    with cli.quiet_run(report.verbosity) as progress:
        made = run(file, output=output, check=not no_check, components=component, progress=progress, **options)
    return _show_change(made, report, lineage_lines)


@click.command()
@cli.model_argument("file")
@cli.target_option("The quantized, tagged file, or the folder for a package.")
@_component_option
@cli.force_option
@click.option("--exclude", multiple=True, metavar="QUERY", help="Leave these nodes in float; repeatable.")
@click.option("--include", multiple=True, metavar="QUERY", help="Quantize none but these nodes; repeatable.")
@click.option("--static", is_flag=True, help="Quantize activations by what they are while the model runs.")
@cli.file_option("--calibration", multiple=True, metavar="NPZ", help="Samples for --static; repeatable.")
@click.option("--quant-format", type=click.Choice(["qdq", "qoperator"]), help="For --static.  [default: qdq]")
@click.option(
    "--method",
    type=click.Choice(["minmax", "entropy", "percentile", "distribution"]),
    help="How ranges are found, for --static.  [default: minmax]",
)
@click.option("--weight-type", type=click.Choice(_TYPES), help="[default: int8]")
@click.option("--activation-type", type=click.Choice(_TYPES), help="For --static.  [default: int8]")
@click.option("--op-types", metavar="OP,…", default="", help="Quantize these operators only.")
@click.option("--per-channel", is_flag=True, help="A scale for each channel of a weight.")
@click.option("--reduce-range", is_flag=True, help="Weights of 7 bits, for CPUs without VNNI.")
@click.option(
    "--block-size",
    type=click.Choice(["16", "32", "64", "128", "256"]),
    help="Weights that share a scale; for int4 and uint4.  [default: 32]",
)
@cli.made_input_options(samples=4)
@click.option("--no-check", "check", flag_value=False, default=True, help="Do not run what the quantizer made.")
@click.option("--report", is_flag=True, help="Compare with FILE: what did each module lose?")
@cli.embed_option("As for relink.")
@cli.report_options("text", "json", to_file=False, keyword="shown")
def quantize(
    *,
    file: Path,
    output: Path,
    component: tuple[str, ...],
    op_types: str,
    block_size: str | None,
    shown: cli.Report,
    **options: Any,
) -> int:
    """Quantize a tagged FILE with ONNX Runtime, but for the nodes that a query means; its record goes along.

    \b
    modelexport quantize bert.onnx -o int8.onnx --exclude 'class=*SelfOutput'
    modelexport quantize bert.onnx -o int8.onnx --static --calibration data.npz --report
    modelexport quantize qwen3/ -o qwen3-int4/ --weight-type int4

    Of a package, every component is quantized, and what comes out is a package for the same consumer. int4 and uint4
    without --static are for weights alone: matrix products become MatMulNBits, an operator of ONNX Runtime's.

    Queries are those of `modelexport query`, but a module that one names by its path or class is meant with everything
    inside of it. One that selects nothing is an error.
    """
    from modelexport.api.quantize import quantize as quantize_file
    from modelexport.show.text.written_files import quantization_lines

    types = tuple(name.strip() for name in op_types.split(",") if name.strip())
    options |= {"op_types": types, "block_size": None if block_size is None else int(block_size)}
    with cli.quiet_run(shown.verbosity) as progress:
        made = quantize_file(file, output, components=component, progress=progress, **options)
    return _show_change(made, shown, quantization_lines)
