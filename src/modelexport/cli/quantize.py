"""`modelexport quantize`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelexport.cli.options import Speech, format_option, model_argument, speech_options
from modelexport.cli.relink import lineage_summary
from modelexport.cli.running import quiet_run

if TYPE_CHECKING:
    from modelexport.api.quantize import QuantizeResult

_FILE = click.Path(path_type=Path)
_TYPES = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "float8")


@click.command()
@model_argument("file")
@click.option("-o", "--output", metavar="FILE", required=True, type=_FILE, help="The quantized, tagged file.")
@click.option("--exclude", multiple=True, metavar="QUERY", help="Leave these nodes in float; repeatable.")
@click.option("--include", multiple=True, metavar="QUERY", help="Quantize none but these nodes; repeatable.")
@click.option("--static", is_flag=True, help="Quantize activations by what they are while the model runs.")
@click.option("--calibration", multiple=True, type=_FILE, metavar="NPZ", help="Samples for --static; repeatable.")
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
@click.option("--input", multiple=True, metavar="NAME=SHAPE", help="Make this input in this shape; repeatable.")
@click.option(
    "--samples", type=click.IntRange(min=1), default=4, show_default=True, metavar="N", help="Make so many inputs."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For the inputs that are made.")
@click.option("--no-check", "check", flag_value=False, default=True, help="Do not run what the quantizer made.")
@click.option("--report", is_flag=True, help="Compare with FILE: what did each module lose?")
@click.option(
    "--embed", type=click.Choice(["full", "lean", "none"]), default="full", show_default=True, help="As for relink."
)
@format_option("text", "json")
@speech_options
def quantize(file: Path, output: Path, op_types: str, form: str, speech: Speech, **options: Any) -> int:
    """Quantize a tagged FILE with ONNX Runtime, but for the nodes that a query means; its record goes along.

    \b
    modelexport quantize bert.onnx -o int8.onnx --exclude 'class=*SelfOutput'
    modelexport quantize bert.onnx -o int8.onnx --static --calibration data.npz --report

    Queries are those of `modelexport query`, but a module that one names by its path or class is meant with everything
    inside of it. One that selects nothing is an error.
    """
    from modelexport.api.quantize import quantize as quantize_file

    types = tuple(name.strip() for name in op_types.split(",") if name.strip())
    with quiet_run(speech) as progress:
        found = quantize_file(file, output, op_types=types, progress=progress, **options)
    _show(found, str(output), form, speech)
    return 0 if found.ok else 1


def _show(found: QuantizeResult, output: str, form: str, speech: Speech) -> None:
    from modelexport.views.quantization import QuantizationSummary, quantization_json, quantization_lines

    summary = QuantizationSummary(
        lineage_summary(found.relinked, output), found.excluded, found.included, found.notes, found.report
    )
    if form == "json":
        from modelexport.views.output import emit

        emit(quantization_json(summary))
    elif not speech.quiet:
        from modelexport.views.console import show

        show(quantization_lines(summary, verbose=speech.verbose))
