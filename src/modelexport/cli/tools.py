"""`modelexport relink`.

`modelexport run-tool`.

`modelexport quantize`.

`modelexport profile`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelexport.cli.options import (
    Speech,
    format_option,
    model_argument,
    output_option,
    quiet_run,
    spare_inputs,
    speech_options,
)

if TYPE_CHECKING:
    from modelexport.record.results.files import RelinkResult
    from modelexport.show.text.lineage import LineageSummary

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("files", metavar="[BEFORE] AFTER", type=_FILE, nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", type=_FILE, help="Write AFTER with its new record.")
@click.option("--tool", default="", metavar="NAME", help="Who made AFTER; it is written into the evidence.")
@click.option(
    "--embed",
    type=click.Choice(["full", "lean", "none"]),
    default="full",
    show_default=True,
    help="How much is written into the file: keys on nodes and the record, the record, or nothing.",
)
@format_option("text", "json")
@speech_options
def relink(files: tuple[Path, ...], output: Path | None, tool: str, embed: str, form: str, speech: Speech) -> int:
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

    with quiet_run(speech) as progress:
        found = relink_file(
            files[-1], output, before=files[0] if len(files) > 1 else None, tool=tool, embed=embed, progress=progress
        )
    show_relinked(found, str(files[-1]), form, speech)
    return 0 if found.ok else 1


def show_relinked(found: RelinkResult, after: str, form: str, speech: Speech) -> None:
    from modelexport.show.text.lineage import lineage_json, lineage_lines

    summary = lineage_summary(found, after)
    if form == "json":
        from modelexport.show.text.console import emit

        emit(lineage_json(summary))
    elif not speech.quiet:
        from modelexport.show.text.console import show

        show(lineage_lines(summary, verbose=speech.verbose))


def lineage_summary(found: RelinkResult, after: str) -> LineageSummary:
    from modelexport.show.text.lineage import LineageSummary

    return LineageSummary(
        after,
        found.before,
        found.files,
        found.lineage,
        found.provenance,
        found.related,
        found.differing,
        found.seconds,
        found.idle,
    )


if TYPE_CHECKING:
    from modelexport.record.results.profile import Profile


@click.command()
@click.argument("file", metavar="FILE", type=_FILE)
@click.option(
    "--before",
    type=_FILE,
    metavar="FILE",
    help="A tagged file that FILE was made from; asked instead of its record.",
)
@click.option("--runs", type=click.IntRange(min=1), default=20, show_default=True, metavar="N", help="Runs that count.")
@click.option(
    "--warmup", type=click.IntRange(min=0), default=5, show_default=True, metavar="N", help="Runs before them."
)
@click.option(
    "--optimization",
    type=click.Choice(["all", "extended", "basic", "none"]),
    default="all",
    show_default=True,
    help="How far ONNX Runtime optimizes the file before it runs it.",
)
@click.option("--providers", metavar="NAMES", default="", help="Of ONNX Runtime, the preferred first: CUDA,CPU.")
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="Threads for one operator; 0: all.")
@click.option("--inputs", type=_FILE, metavar="FILE", help="An .npz file with the inputs themselves.")
@click.option("--input", multiple=True, metavar="NAME=SHAPE", help="Make this input in this shape; repeatable.")
@click.option("--seed", type=int, default=0, show_default=True, help="For the inputs that are made.")
@click.option("--trace", type=_FILE, metavar="FILE", help="Write a trace for Perfetto or speedscope.")
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Show so many levels of modules.")
@click.option("--all", "everything", is_flag=True, help="Show all modules.")
@output_option("Write to FILE instead of standard output.")
@format_option("text", "json", "csv")
@speech_options
def profile(*, file: Path, providers: str, trace: Path | None, speech: Speech, **options: Any) -> int:
    """Run FILE in ONNX Runtime and show in which module its time goes.

    \b
    modelexport profile bert.onnx --runs 50
    modelexport profile bert.int8.onnx --trace trace.json

    The graph that ONNX Runtime really ran is traced back to the modules. What one kernel does for several modules is
    charged to the module around them, and shown as shared.

    \b
    exit codes  0  done
                1  what modules are charged with is not what ONNX Runtime's trace adds up to
                2  the file, its record, the inputs or a provider cannot be used
    """
    from modelexport.api.profile import profile as profile_file

    shown = {name: options.pop(name) for name in ("form", "output", "depth", "everything")}
    given = [path for path in (file, options["before"], options["inputs"]) if path is not None]
    spare_inputs(shown["output"], *given)
    spare_inputs(trace, *given)
    _ensure_targets(shown["output"], trace)
    names = [name.strip() for name in providers.split(",") if name.strip()]
    with quiet_run(speech) as progress:
        found = profile_file(file, providers=names, progress=progress, **options)
    if trace is not None:
        from modelexport.show.data.trace import profile_trace
        from modelexport.show.text.console import emit

        emit(profile_trace(found), trace)
    _show_profile(found, speech, **shown)
    return 0 if found.check.holds else 1


def _ensure_targets(*paths: Path | None) -> None:
    """Fail before anything runs, and before one file is written without the other."""
    from modelexport.show.text.console import ensure_targets

    ensure_targets([path for path in paths if path is not None])


def _show_profile(
    found: Profile, speech: Speech, *, form: str, output: Path | None, depth: int | None, everything: bool
) -> None:
    if form == "text":
        if output is not None or not speech.quiet:
            from modelexport.show.text.console import show
            from modelexport.show.text.cost_and_profile import profile_tables

            show(profile_tables(found, depth=depth, everything=everything, verbose=speech.verbose), output)
        return
    from modelexport.show.data.cost_and_profile import profile_csv, profile_json
    from modelexport.show.text.console import emit

    emit(profile_json(found) if form == "json" else profile_csv(found), output)


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


if TYPE_CHECKING:
    from modelexport.record.results.files import QuantizeResult

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
    _show_quantization(found, str(output), form, speech)
    return 0 if found.ok else 1


def _show_quantization(found: QuantizeResult, output: str, form: str, speech: Speech) -> None:
    from modelexport.show.text.lineage import QuantizationSummary, quantization_json, quantization_lines

    summary = QuantizationSummary(
        lineage_summary(found.relinked, output), found.excluded, found.included, found.notes, found.report
    )
    if form == "json":
        from modelexport.show.text.console import emit

        emit(quantization_json(summary))
    elif not speech.quiet:
        from modelexport.show.text.console import show

        show(quantization_lines(summary, verbose=speech.verbose))
