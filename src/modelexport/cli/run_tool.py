"""`modelexport run-tool`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.options import Speech, format_option, speech_options
from modelexport.cli.relink import show_relinked
from modelexport.cli.running import quiet_run

_FILE = click.Path(path_type=Path)


@click.command("run-tool")
@click.argument("file", metavar="FILE", type=_FILE)
@click.option("--tool", required=True, metavar="NAME", help="One of those below, or several: int8+ort:all.")
@click.option("-o", "--output", metavar="FILE", required=True, type=_FILE, help="The tagged file.")
@click.option(
    "--inputs", type=_FILE, metavar="FILE", help="An .npz file with inputs, for quantizers and for the check."
)
@click.option("--input", multiple=True, metavar="NAME=SHAPE", help="Make this input in this shape; repeatable.")
@click.option(
    "--samples", type=click.IntRange(min=1), default=4, show_default=True, metavar="N", help="Make so many inputs."
)
@click.option("--seed", type=int, default=0, show_default=True, help="For the inputs that are made.")
@click.option("--no-check", is_flag=True, help="Do not run what the tool made.")
@click.option(
    "--embed", type=click.Choice(["full", "lean", "none"]), default="full", show_default=True, help="As for relink."
)
@format_option("text", "json")
@speech_options
def run_tool(file: Path, output: Path, no_check: bool, form: str, speech: Speech, **options: Any) -> int:
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

    with quiet_run(speech) as progress:
        found = run(file, output=output, check=not no_check, progress=progress, **options)
    show_relinked(found, str(output), form, speech)
    return 0 if found.ok else 1
