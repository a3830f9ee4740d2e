"""Verbs that ask about one file: `analyze`, `query`, `validate`, `cost`, `profile`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from modelexport.cli import options as cli
from modelexport.cli import package as packages
from modelexport.errors import UserError

if TYPE_CHECKING:
    from rich.console import RenderableType

# Python reads no numbers that are much longer, and no axis is that long.
_DIGITS = 100
_COUNT = click.IntRange(min=1)


@click.command()
@cli.model_argument("model")
@click.option("--filter-tag", metavar="TEXT", help="Only nodes whose tag contains TEXT, and their modules.")
@cli.report_options("summary", "detailed", "json", "csv")
def analyze(model: Path, filter_tag: str | None, report: cli.Report) -> int:
    """Show what MODEL consists of: modules with their nodes, parameters and operators, and how well each node is known.

    MODEL is a file, or the folder of a package: then all of its files are shown, and one module tree over all of them.

    \b
    summary   module tree, coverage by confidence and evidence
    detailed  the same without abridgement, and a table of all nodes
    json      everything, as described by the published schema
    csv       one row for each node
    """
    from modelexport.api.read import analyze as analyze_model
    from modelexport.show.text.analysis import analysis_tables

    if (package := packages.find_package(model)) is not None:
        return packages.show_analysis(package, filter_tag, report)
    cli.spare_inputs(report.output, model)
    analysis = analyze_model(model, filter_tag)
    detailed = report.form == "detailed" or report.verbose  # -v asks for the same
    report.show(analysis, lambda: analysis_tables(analysis, detailed=detailed))
    report.print_notes(analysis.notes)
    return 0


@click.command()
@cli.model_argument("model")
@click.option("--check-consistency", is_flag=True, help="Also find attributions that dataflow rules out.")
@click.option("--require-record", is_flag=True, help="Count it as an error if there is no record.")
@click.option(
    "--repair",
    is_flag=True,
    help="First rewrite the keys on the nodes from the record; of a package, also list edited files beside it.",
)
@cli.target_option("Write the repaired model to FILE, or the package to a folder, instead of MODEL.", required=False)
@cli.report_options("text", "json", to_file=False)
def validate(model: Path, output: Path | None, report: cli.Report, **options: Any) -> int:
    """Check that MODEL is valid, that its record belongs to it, and that its tags agree with the record.

    Of a package, every file is checked, and whether they fit together: digests, links, cache pairs, tags, modules that
    are in no file. Exits with 1 if there is an error. That there is no record is a warning, unless one is required.
    """
    if output is not None and not options["repair"]:
        raise UserError("--output says where the repaired model goes", "Add --repair.")
    from modelexport.api.read import validate as validate_model
    from modelexport.show.text.checks import validation_tables

    if (package := packages.find_package(model)) is not None:
        return packages.show_validation(package, report, output=output, **options)
    validation = validate_model(model, output=output, **options)
    report.show_unless_quiet(validation, lambda: validation_tables(validation, verbose=report.verbose))
    return 0 if validation.ok else 1


@click.command()
@cli.model_argument("model")
@click.argument("query", metavar="QUERY")
@cli.report_options("table", "names", "json")
def query(model: Path, query: str, report: cli.Report) -> int:
    """List the nodes of MODEL that QUERY means.

    \b
    modelexport query bert.onnx 'module=encoder.layer.*.attention.** & op=MatMul'
    modelexport query bert.onnx 'confidence<strong | !role=**' --format names

    \b
    module, param      pattern: * within one step of the path, ** for any number of steps
    tag, role          the same, over / and over .
    class, op, tensor  pattern: * for any characters; op also as domain::op
    within             the same, for the class of any module around the node
    evidence           kind, or kind:source
    relation           kept, renamed, rewritten, fused, split, shared, folded, introduced: what tools made of it
    confidence         exact, strong, inferred, fallback, none; with = != < <= > >=
    layer, call        3, 0..3 or 0,2,5; with = != < <= > >=
    & | ! ( )          and, or, not, grouping; quotes around odd values

    A name or pattern that is that of nothing in the file is an error. Names that are right but have no node in common
    are an empty answer. In a package, all files are asked, and nodes come with the component that they are in.
    """
    from modelexport.api.read import answer as answer_query
    from modelexport.show.text.analysis import query_names, query_table
    from modelexport.show.text.console import emit
    from modelexport.show.text.package import package_query_names, package_query_table

    package = packages.find_package(model)
    cli.spare_inputs(report.output, *((model,) if package is None else package.files))
    answer = answer_query(model if package is None else package, query)
    list_names: Callable[[Any], str] = query_names if package is None else package_query_names
    make_table: Callable[[Any], Iterator[RenderableType]] = query_table if package is None else package_query_table
    if report.form == "names":
        emit(list_names(answer), report.output, quiet=report.verbosity.quiet)
    else:
        report.show(answer, lambda: make_table(answer))
    cli.print_notes(answer.remarks, report.verbosity)
    report.print_notes(answer.notes)
    return 0


@click.command()
@cli.model_argument("file")
@click.option("--at", multiple=True, metavar="AXIS=SIZE,…", help="Sizes of axes that the file leaves open; repeatable.")
@cli.preset_option("--by", "module", "What a row is about.", type=click.Choice(["module", "node"]))
@cli.tree_options
@cli.report_options("text", "json", "csv")
def cost(file: Path, at: tuple[str, ...], by: str, report: cli.Report, **tree: Any) -> int:
    """Count what FILE takes: FLOPs, parameters, bytes of weights and of activations, module by module.

    \b
    modelexport cost bert.onnx
    modelexport cost bert.onnx --at batch=8,sequence=128 --depth 2
    modelexport cost bert.onnx --by node --format csv -o nodes.csv
    modelexport cost qwen3/ --at batch=1,past_sequence=4096,sequence=1

    Everything follows from shapes: nothing is run and no weight is read. Amounts are in terms of the axes that the file
    leaves open, until --at gives them sizes. FLOPs are those of matrix multiplications, convolutions and the like, a
    multiplication and an addition being two; the operations of everything else are `other`. Of a package, every file is
    counted by itself, and the bytes of the cache module by module.

    \b
    exit codes  0  done
                2  the file or its record cannot be used, or it has no such axis
    """
    from modelexport.api.read import cost as count_cost
    from modelexport.show.text.cost_and_profile import cost_tables, node_tables

    sizes = parse_sizes(at)
    if (package := packages.find_package(file)) is not None:
        return packages.show_cost(package, sizes, by, report, **tree)
    cli.spare_inputs(report.output, file)
    counted = count_cost(file, sizes)

    # Made only for text: JSON and CSV never build a table.
    def view() -> Iterator[RenderableType]:
        if by == "node":
            return node_tables(counted, verbose=report.verbose)
        return cost_tables(counted, verbose=report.verbose, **tree)

    report.show(counted, view, rows=f"{by}s")
    report.print_notes(counted.notes)
    return 0


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """`batch=8,sequence=128` as sizes by axis."""
    sizes: dict[str, int] = {}
    for item in (item.strip() for text in texts for item in text.split(",")):
        name, equals, number = (part.strip() for part in item.rpartition("="))
        if not equals or not name or not number.isascii() or not number.isdecimal() or len(number) > _DIGITS:
            shown = item if len(item) <= _DIGITS else f"{item[:_DIGITS]}…"
            raise UserError(f"--at {shown!r} is no size of an axis", "Write it like --at batch=8,sequence=128.")
        # The same size twice is no contradiction: scripts put options together.
        if sizes.setdefault(name, int(number)) != int(number):
            raise UserError(f"--at gives the axis {name!r} two sizes: {sizes[name]} and {number}", "Give it one.")
    return sizes


@click.command()
@cli.model_argument("file")
@cli.file_option("--before", help="A tagged file that FILE was made from; asked instead of its record.")
@cli.preset_option("--runs", 20, "Runs that count.", type=click.IntRange(min=1), metavar="N")
@cli.preset_option("--warmup", 5, "Runs before them.", type=click.IntRange(min=0), metavar="N")
@cli.preset_option(
    "--optimization",
    "all",
    "How far ONNX Runtime optimizes the file before it runs it.",
    type=click.Choice(["all", "extended", "basic", "none"]),
)
@click.option("--providers", metavar="NAMES", default="", help="Of ONNX Runtime, the preferred first: CUDA,CPU.")
@click.option("--threads", type=click.IntRange(min=0), default=0, metavar="N", help="Threads for one operator; 0: all.")
@cli.file_option("--inputs", help="An .npz file with the inputs themselves.")
@cli.source_option(required=False, purpose="Its run gives the inputs, and fills a cache.")
@cli.made_input_options()
@cli.file_option("--trace", help="Write a trace for Perfetto or speedscope.")
@click.option("--prompt", type=_COUNT, metavar="N", help="Of a package: tokens of the prefill.  [default: 512]")
@click.option("--new-tokens", type=_COUNT, metavar="N", help="Of a package: decode steps.  [default: 64]")
@click.option("--batch", type=_COUNT, default=1, metavar="N", help="Of a package: rows at once.  [default: 1]")
@click.option("--past", metavar="N,N,…", default="", help="Of a package: decode steps with so many tokens in the past.")
@cli.tree_options
@cli.report_options("text", "json", "csv")
def profile(
    *,
    file: Path,
    providers: str,
    trace: Path | None,
    depth: int | None,
    everything: bool,
    report: cli.Report,
    **options: Any,
) -> int:
    """Run FILE in ONNX Runtime and show in which module its time goes.

    \b
    modelexport profile bert.onnx --runs 50
    modelexport profile bert.int8.onnx --trace trace.json
    modelexport profile qwen3/ --prompt 512 --new-tokens 64 --past 128,1024,4096

    The graph that ONNX Runtime really ran is traced back to the modules. What one kernel does for several modules is
    charged to the module around them, and shown as shared. Of a package that generates, prefill and decode steps are
    run apart, on caches that its own files fill.

    \b
    exit codes  0  done
                1  what modules are charged with is not what ONNX Runtime's trace adds up to
                2  the file, its record, the inputs or a provider cannot be used
    """
    names = [name.strip() for name in providers.split(",") if name.strip()]
    options["past"] = _parse_lengths(options["past"])
    if (package := packages.find_package(file)) is not None:
        tree = {"depth": depth, "everything": everything}
        return packages.show_profile(package, report, tree, trace=trace, providers=names, **options)
    from modelexport.api.profile import profile as profile_file
    from modelexport.show.data.trace import profile_trace
    from modelexport.show.text.console import emit, ensure_targets
    from modelexport.show.text.cost_and_profile import profile_tables

    asked = [path for path in (file, options["before"], options["inputs"]) if path is not None]
    targets = [path for path in (report.output, trace) if path is not None]
    for target in targets:
        cli.spare_inputs(target, *asked)
    ensure_targets(targets)  # before anything runs, and before one file is written without the other
    with cli.quiet_run(report.verbosity) as progress:
        result = profile_file(file, providers=names, progress=progress, **options)
    # First the trace: the table may say by its exit code that something is wrong, and the trace shows what.
    if trace is not None:
        emit(profile_trace(result), trace, quiet=report.verbosity.quiet)
    report.show_unless_quiet(
        result, lambda: profile_tables(result, depth=depth, everything=everything, verbose=report.verbose)
    )
    return 0 if result.check.holds else 1


def _parse_lengths(text: str) -> tuple[int, ...]:
    """`128,1024`: lengths of the past."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) for part in parts):
        raise UserError(f"--past {text!r} is no list of lengths", "Give numbers of tokens: --past 128,1024.")
    return tuple(map(int, parts))
