"""`modelexport extract`.

`modelexport fold`.

`modelexport flatten`.

`modelexport strip`.

`modelexport select`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli.options import (
    Speech,
    format_option,
    loading_options,
    model_argument,
    output_option,
    quiet_run,
    speech_options,
)
from modelexport.errors import UserError, printable
from modelexport.record.results.files import TOLERANCE
from modelexport.show.text.console import bytes_text, counted

_FILE = click.Path(path_type=Path)


@click.command()
@click.argument("file", metavar="FILE", type=_FILE)
@click.argument("modules", metavar="MODULE|QUERY...", nargs=-1, required=True)
@click.option("-o", "--output", metavar="FILE", type=_FILE, required=True, help="The file to write.")
@click.option("--verify", is_flag=True, help="Compare it with the PyTorch module; needs -m.")
@click.option(
    "-m",
    "--model",
    metavar="MODEL",
    help="The PyTorch model: a folder, a config.json, a hub id, or package.module:callable. Implies --verify.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help=f"Absolute and relative, for --verify; {TOLERANCE:g} if not given, more for types with few bits.",
)
@click.option(
    "--embed",
    type=click.Choice(["full", "lean", "none"]),
    default="full",
    show_default=True,
    help="How much is written into the file: keys on nodes and the record, the record, or nothing.",
)
@loading_options
@format_option("text", "json")
@speech_options
def extract(
    file: Path, modules: tuple[str, ...], output: Path, verify: bool, form: str, speech: Speech, **options: Any
) -> int:
    """Write a part of FILE as a file of its own: a module, a call of one, several modules, or what a query means.

    \b
    modelexport extract bert.onnx encoder.layer.0.attention -o attention.onnx --verify -m ./bert
    modelexport extract albert.onnx encoder.albert_layer_groups.0#2 -o third.onnx
    modelexport extract bert.onnx 'role=attention.* & layer=0' -o attention.onnx

    With --verify, the file is fed the tensors that the PyTorch module received and compared with what that returned.
    Exits with 1 if they differ, with 2 if the module cannot be cut out; the smallest cut that exists is then named.
    """
    if verify and options["model"] is None:
        raise UserError("--verify needs the model that the file was exported from", "Give it: -m MODEL.")
    from modelexport.api.extract import extract as extract_part

    with quiet_run(speech) as progress:
        found = extract_part(file, modules, output, progress=progress, **options)
    if form == "json":
        from modelexport.show.text.console import emit
        from modelexport.show.text.written_files import extraction_json

        emit(extraction_json(found))
    elif not speech.quiet:
        from modelexport.show.text.console import show
        from modelexport.show.text.written_files import extraction_lines

        show(extraction_lines(found, verbose=speech.verbose))
    return 0 if found.ok else 1


@click.command()
@model_argument("model")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="Write the folded file."
)
@click.option(
    "--class",
    "classes",
    metavar="CLASS",
    multiple=True,
    help="Fold modules of this class only, also if there is one; can be given several times.",
)
@format_option("text", "json")
@speech_options
def fold(model: Path, output: Path, classes: tuple[str, ...], form: str, speech: Speech) -> int:
    """Make the modules of MODEL that repeat into ONNX functions, nested as the modules are.

    \b
    modelexport fold bert.onnx -o folded.onnx
    modelexport fold bert.onnx -o folded.onnx --class BertLayer --class BertAttention

    Modules that do the same share one function; their weights are its inputs. The folded file runs as the flat one
    does, and `modelexport flatten` makes it exactly what it was.
    """
    from modelexport.api.fold import fold as fold_file

    found = fold_file(model, output, classes=classes)
    if form == "json":
        from modelexport.show.text.console import emit
        from modelexport.show.text.written_files import folding_json

        emit(folding_json(found.files, found.folding))
    elif not speech.quiet:
        from modelexport.show.text.console import show
        from modelexport.show.text.written_files import folding_lines

        show(folding_lines(found.files, found.folding, verbose=speech.verbose))
    return 0


@click.command()
@model_argument("model")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), required=True, help="Write the flat file."
)
@format_option("text", "json")
@speech_options
def flatten(model: Path, output: Path, form: str, speech: Speech) -> int:
    """Put functions in the place of their calls.

    \b
    modelexport flatten folded.onnx -o flat.onnx

    A file that `modelexport fold` wrote becomes exactly what it was: nodes, names, metadata, order and record. In other
    files, what is inside of a function gets the name of the call before its own.
    """
    from modelexport.api.fold import flatten as flatten_file

    found = flatten_file(model, output)
    if form == "json":
        from modelexport.show.text.console import emit
        from modelexport.show.text.written_files import flattening_json

        emit(flattening_json(found.files, found.flattening))
    elif not speech.quiet:
        from modelexport.show.text.console import show
        from modelexport.show.text.written_files import flattening_lines

        show(flattening_lines(found.files, found.flattening))
    return 0


@click.command()
@model_argument("model")
@click.option(
    "-o", "--output", metavar="FILE", required=True, type=click.Path(path_type=Path), help="The file without them."
)
@click.option("--keep", multiple=True, metavar="KEY,…", help="Keys that stay; those below.")
@click.option("--exporter-metadata", is_flag=True, help="Also remove what torch writes on nodes.")
@speech_options
def strip(model: Path, output: Path, keep: tuple[str, ...], exporter_metadata: bool, speech: Speech) -> int:
    """Write MODEL without what this tool has put into it: the record, and the keys on its nodes.

    \b
    tag, module, modules, confidence, evidence, role, layer   keys on nodes
    record, outline                                           of the whole file

    Nodes, edges, attributes, weights and the metadata of others stay as they are.
    """
    from modelexport.api.fold import strip as strip_file

    names = [name.strip() for given in keep for name in given.split(",") if name.strip()]
    found = strip_file(model, output, keep=names, exporter_metadata=exporter_metadata)
    if not speech.quiet:
        for path in found.files:
            click.echo(printable(f"wrote {path} ({bytes_text(path.stat().st_size)})"))
        click.echo(f"{counted(found.removed, 'key')} removed" if found.removed else "there was nothing to remove")
        if found.absent:
            click.echo(f"note: the file has no {', '.join(found.absent)} that could be kept")
    return 0


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
    from modelexport.show.text.console import emit

    found = select_nodes(model, query, dialect, **options)
    if options["output"] is None or dialect == "layer-ann":
        emit(found.text)
    if not speech.quiet:
        for path in found.files:
            click.echo(printable(f"wrote {path}"), err=True)
        for note in (*found.notes, f"{counted(len(found.nodes), 'node')} selected"):
            click.echo(printable(note), err=True)
    return 0
