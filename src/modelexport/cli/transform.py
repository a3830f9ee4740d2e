"""Verbs that write another file with modules as handles: `extract`, `fold`, `flatten`, `strip`, `select`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from modelexport.cli import options as cli
from modelexport.cli import package as packages
from modelexport.errors import UserError, printable
from modelexport.record.results.files import TOLERANCE


@click.command()
@cli.model_argument("file")
@click.argument("modules", metavar="MODULE|QUERY...", nargs=-1, required=True)
@cli.target_option("The file to write.")
@click.option("--verify", is_flag=True, help="Compare it with the PyTorch module; needs -m.")
@cli.source_option(required=False, purpose="Implies --verify.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    help=f"Absolute and relative, for --verify; {TOLERANCE:g} if not given, more for types with few bits.",
)
@cli.embed_option()
@cli.loading_options
@cli.report_options("text", "json", to_file=False)
def extract(
    file: Path, modules: tuple[str, ...], output: Path, verify: bool, report: cli.Report, **options: Any
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
    from modelexport.show.text.written_files import extraction_lines

    with cli.quiet_run(report.verbosity) as progress:
        result = extract_part(file, modules, output, progress=progress, **options)
    report.show_unless_quiet(result, lambda: extraction_lines(result, verbose=report.verbose))
    return 0 if result.ok else 1


@click.command()
@cli.model_argument("model")
@cli.target_option("Write the folded file.")
@click.option(
    "--class",
    "classes",
    metavar="CLASS",
    multiple=True,
    help="Fold modules of this class only, also if there is one; can be given several times.",
)
@cli.report_options("text", "json", to_file=False)
def fold(model: Path, output: Path, classes: tuple[str, ...], report: cli.Report) -> int:
    """Make the modules of MODEL that repeat into ONNX functions, nested as the modules are.

    \b
    modelexport fold bert.onnx -o folded.onnx
    modelexport fold bert.onnx -o folded.onnx --class BertLayer --class BertAttention

    Modules that do the same share one function; their weights are its inputs. The folded file runs as the flat one
    does, and `modelexport flatten` makes it exactly what it was.
    """
    from modelexport.api.fold import fold as fold_file
    from modelexport.show.text.written_files import folding_lines

    result = fold_file(model, output, classes=classes)
    report.show_unless_quiet(result, lambda: folding_lines(result, verbose=report.verbose))
    return 0


@click.command()
@cli.model_argument("model")
@cli.target_option("Write the flat file.")
@cli.report_options("text", "json", to_file=False)
def flatten(model: Path, output: Path, report: cli.Report) -> int:
    """Put functions in the place of their calls.

    \b
    modelexport flatten folded.onnx -o flat.onnx

    A file that `modelexport fold` wrote becomes exactly what it was: nodes, names, metadata, order and record. In other
    files, what is inside of a function gets the name of the call before its own.
    """
    from modelexport.api.fold import flatten as flatten_file
    from modelexport.show.text.written_files import flattening_lines

    result = flatten_file(model, output)
    report.show_unless_quiet(result, lambda: flattening_lines(result))
    return 0


@click.command()
@cli.model_argument("model")
@cli.target_option("The file without them.")
@click.option("--keep", multiple=True, metavar="KEY,…", help="Keys that stay; those below.")
@click.option("--exporter-metadata", is_flag=True, help="Also remove what torch writes on nodes.")
@cli.force_option
@cli.verbosity_options
def strip(
    *, model: Path, output: Path, keep: tuple[str, ...], exporter_metadata: bool, force: bool, verbosity: cli.Verbosity
) -> int:
    """Write MODEL without what this tool has put into it: the record, and the keys on its nodes.

    \b
    tag, module, modules, confidence, evidence, role, layer   keys on nodes
    record, outline                                           of the whole file

    Nodes, edges, attributes, weights and the metadata of others stay as they are. Of a package, all files are written,
    into the folder that -o names.
    """
    from modelexport.api.fold import strip as strip_file
    from modelexport.show.text.console import bytes_text, counted

    # Both `--keep tag,role` and `--keep tag --keep role`.
    names = [name.strip() for text in keep for name in text.split(",") if name.strip()]
    if (package := packages.find_package(model)) is not None:
        removal = strip_file(package, output, keep=names, exporter_metadata=exporter_metadata, force=force)
        if not verbosity.quiet:
            for name, component in removal.components.items():
                click.echo(printable(f"{name}: {counted(component.removed, 'key')} removed"))
            click.echo(printable(f"wrote {output} ({counted(len(removal.package.files), 'file')})"))
        return 0
    stripped = strip_file(model, output, keep=names, exporter_metadata=exporter_metadata)
    if not verbosity.quiet:
        for path in stripped.files:  # weights in a file of their own are copied beside it
            click.echo(printable(f"wrote {path} ({bytes_text(path.stat().st_size)})"))
        click.echo(f"{counted(stripped.removed, 'key')} removed" if stripped.removed else "there was nothing to remove")
        if stripped.absent:
            click.echo(f"note: the file has no {', '.join(stripped.absent)} that could be kept")
    return 0


@click.command()
@cli.model_argument("model")
@click.argument("query", metavar="QUERY...", nargs=-1, required=True)
@click.option("--for", "dialect", required=True, metavar="TOOL", help="Who is to read it: one of those above.")
@cli.target_option("Write to FILE instead of standard output; for layer-ann, the annotated model.", required=False)
@cli.file_option("--named", help="Also write a copy of MODEL in which every node has a name that the tool can be told.")
@click.option(
    "--precision", default="", metavar="TYPE", help="For tensorrt: fp32, fp16, bf16 or int8.  [default: fp32]"
)
@click.option("--device", multiple=True, metavar="NAME", help="For layer-ann: gpu, cpu, npu, …  [default: gpu]")
@click.option("--label", multiple=True, metavar="NAME", help="For layer-ann: what the nodes are to be called.")
@cli.force_option
@cli.verbosity_options
def select(model: Path, query: tuple[str, ...], dialect: str, verbosity: cli.Verbosity, **options: Any) -> int:
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
    and so is a selection that the tool cannot be told. Of a package, every file in which something is selected gets a
    list of its own, in the folder that -o names.
    """
    from modelexport.api.select import select as select_nodes
    from modelexport.show.text.console import counted, emit

    if (package := packages.find_package(model)) is not None:
        written = select_nodes(package, query, dialect, **options)
        emit(written.text)
        packages.print_written(written, verbosity)
        return 0
    selection = select_nodes(model, query, dialect, **options)
    if options["output"] is None or dialect == "layer-ann":  # whose output is the model; the text is for the session
        emit(selection.text)
    wrote = [f"wrote {path}" for path in selection.files]
    cli.print_notes([*wrote, *selection.notes, f"{counted(len(selection.nodes), 'node')} selected"], verbosity)
    return 0
