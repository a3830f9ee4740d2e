"""`modelexport select`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.options import Speech, model_argument, output_option, speech_options
from modelexport.views.amounts import counted
from modelexport.views.printable import printable


@click.command()
@model_argument("model")
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@click.option("--for", "dialect", required=True, metavar="TOOL", help="Who is to read it: one of those above.")
@output_option("Write to FILE instead of standard output; for layer-ann, the annotated model.")
@click.option(
    "--named",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write a copy of MODEL in which every node has a name that the tool can be told.",
)
@click.option(
    "--precision", default="", metavar="TYPE", help="For tensorrt: fp32, fp16, bf16 or int8.  [default: fp32]"
)
@click.option("--device", multiple=True, metavar="NAME", help="For layer-ann: gpu, cpu, npu, …  [default: gpu]")
@click.option("--label", multiple=True, metavar="NAME", help="For layer-ann: what the nodes are to be called.")
@speech_options
def select(model: Path, query: tuple[str, ...], dialect: str, speech: Speech, **options: Any) -> int:
    """Select the nodes of MODEL that QUERY means, and write them the way that another tool wants them.

    \b
    modelexport select bert.onnx 'role=attention.* & op=Softmax' --for ort-exclude -o exclude.json
    modelexport select bert.onnx 'layer=0..5' 'layer=6..11' --for olive-split

    \b
    ort-exclude   nodes_to_exclude of ONNX Runtime's quantizers (JSON)
    layer-ann     a copy of MODEL for ONNX Runtime's placement, and the session option for it; --device, --label
    olive-split   split_assignments of Olive's SplitModel (JSON); one query for each split
    modelopt      nodes_to_exclude of NVIDIA ModelOpt (JSON)
    tensorrt      arguments of TensorRT's trtexec, one on each line; --precision
    names         names, one on each line

    Queries are those of `modelexport query`. Names are checked against MODEL. A query that selects nothing is an error,
    and so is a selection that the tool cannot be told.
    """
    from modelexport.api.select import select as select_nodes
    from modelexport.views.output import emit

    found = select_nodes(model, query, dialect, **options)
    if options["output"] is None or dialect == "layer-ann":
        emit(found.text)
    if not speech.quiet:
        for path in found.files:
            click.echo(printable(f"wrote {path}"), err=True)
        for note in (*found.notes, f"{counted(len(found.nodes), 'node')} selected"):
            click.echo(printable(note), err=True)
    return 0
