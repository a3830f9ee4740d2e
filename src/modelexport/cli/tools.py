"""Verbs about what a tool makes of a tagged file: `relink`, `run-tool`, `quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli import options as cli

# The names of `QuantType` in onnxruntime.quantization, less their Q, in lower case; float8 is QFLOAT8E4M3FN.
_TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "float8")


@click.command()
@click.argument("files", metavar="[BEFORE] AFTER", type=click.Path(path_type=Path), nargs=-1, required=True)
@cli.target_option("Write AFTER with its new record.", required=False)
@click.option("--tool", default="", metavar="NAME", help="Who made AFTER; it is written into the evidence.")
@cli.embed_option()
@cli.report_options("text", "json", to_file=False)
def relink(files: tuple[Path, ...], output: Path | None, tool: str, embed: str, report: cli.Report) -> int:
    """Find out which module each node of AFTER belongs to, which an optimizer or quantizer made of BEFORE.

    \b
    modelexport relink bert.onnx bert.opt.onnx -o bert.opt.tagged.onnx
    modelexport relink bert.int8.onnx -o bert.int8.tagged.onnx

    BEFORE is a tagged file. Without it, what `export` planted in the file takes its place. Exits with 1 if the files
    have nothing to do with each other, and if weights of the same name differ.
    """
    if len(files) > 2:
        raise click.UsageError("give one file, or the one before and the one after")
    from modelexport.api.relink import relink as relink_file
    from modelexport.show.text.written_files import lineage_lines

    before = files[0] if len(files) > 1 else None  # else what `export` planted in the file
    with cli.quiet_run(report.verbosity) as progress:
        result = relink_file(files[-1], output, before=before, tool=tool, embed=embed, progress=progress)
    report.show_unless_quiet(result, lambda: lineage_lines(result, verbose=report.verbose))
    return 0 if result.ok else 1


@click.command("run-tool")
@cli.model_argument("file")
@click.option("--tool", required=True, metavar="NAME", help="One of those below, or several: int8+ort:all.")
@cli.target_option("The tagged file.")
@cli.file_option("--inputs", help="An .npz file with inputs, for quantizers and for the check.")
@cli.made_input_options(samples=4)
@click.option("--no-check", is_flag=True, help="Do not run what the tool made.")
@cli.embed_option("As for relink.")
@cli.report_options("text", "json", to_file=False)
def run_tool(file: Path, output: Path, no_check: bool, report: cli.Report, **options: Any) -> int:
    """Run an optimizer, converter or quantizer on a tagged FILE, and carry its record to what comes out.

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
        result = run(file, output=output, check=not no_check, progress=progress, **options)
    report.show_unless_quiet(result, lambda: lineage_lines(result, verbose=report.verbose))
    return 0 if result.ok else 1


@click.command()
@cli.model_argument("file")
@cli.target_option("The quantized, tagged file.")
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
@cli.made_input_options(samples=4)
@click.option("--no-check", "check", flag_value=False, default=True, help="Do not run what the quantizer made.")
@click.option("--report", is_flag=True, help="Compare with FILE: what did each module lose?")
@cli.embed_option("As for relink.")
@cli.report_options("text", "json", to_file=False, keyword="shown")
def quantize(file: Path, output: Path, op_types: str, shown: cli.Report, **options: Any) -> int:
    """Quantize a tagged FILE with ONNX Runtime, but for the nodes that a query means; its record goes along.

    \b
    modelexport quantize bert.onnx -o int8.onnx --exclude 'class=*SelfOutput'
    modelexport quantize bert.onnx -o int8.onnx --static --calibration data.npz --report

    Queries are those of `modelexport query`, but a module that one names by its path or class is meant with everything
    inside of it. One that selects nothing is an error.
    """
    from modelexport.api.quantize import quantize as quantize_file
    from modelexport.show.text.written_files import quantization_lines

    types = tuple(name.strip() for name in op_types.split(",") if name.strip())
    with cli.quiet_run(shown.verbosity) as progress:
        result = quantize_file(file, output, op_types=types, progress=progress, **options)
    shown.show_unless_quiet(result, lambda: quantization_lines(result, verbose=shown.verbose))
    return 0 if result.ok else 1
