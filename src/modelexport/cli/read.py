"""`modelexport analyze`.

`modelexport validate`.

`modelexport compare`.

`modelexport query`.

`modelexport cost`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelexport.cli.options import Speech, format_option, model_argument, output_option, spare_inputs, speech_options
from modelexport.errors import UserError, printable


@click.command()
@model_argument("model")
@format_option("summary", "detailed", "json", "csv")
@click.option("--filter-tag", metavar="TEXT", help="Only nodes whose tag contains TEXT, and their modules.")
@output_option("Write to FILE instead of standard output.")
@speech_options
def analyze(model: Path, form: str, filter_tag: str | None, output: Path | None, speech: Speech) -> int:
    """Show what MODEL consists of: modules with their nodes, parameters and operators, and how well each node is known.

    \b
    summary   module tree, coverage by confidence and evidence
    detailed  the same without abridgement, and a table of all nodes
    json      everything, as described by the published schema
    csv       one row for each node
    """
    from modelexport.api.read import analyze as analyze_model

    spare_inputs(output, model)
    analysis = analyze_model(model, filter_tag)
    if form == "json":
        from modelexport.show.data.analysis import analysis_json
        from modelexport.show.text.console import emit

        emit(analysis_json(analysis), output)
    elif form == "csv":
        from modelexport.show.data.analysis import analysis_csv
        from modelexport.show.text.console import emit

        emit(analysis_csv(analysis), output)
    else:
        from modelexport.show.text.analysis import analysis_tables
        from modelexport.show.text.console import show

        show(analysis_tables(analysis, detailed=form == "detailed" or speech.verbose), output)
    return 0


@click.command()
@model_argument("model")
@click.option("--check-consistency", is_flag=True, help="Also find attributions that dataflow rules out.")
@click.option("--repair", is_flag=True, help="First rewrite the keys on the nodes from the record.")
@output_option("Write the repaired model to FILE instead of MODEL.")
@format_option("text", "json")
@speech_options
def validate(
    model: Path,
    check_consistency: bool,
    repair: bool,
    output: Path | None,
    form: str,
    speech: Speech,
) -> int:
    """Check that MODEL is valid, that its record belongs to it, and that its tags agree with the record.

    Exits with 1 if there is an error.
    """
    if output is not None and not repair:
        raise UserError("--output says where the repaired model goes", "Add --repair.")
    from modelexport.api.read import validate as validate_model

    validation = validate_model(model, check_consistency, repair, output)
    if form == "json":
        from modelexport.show.data.analysis import validation_json
        from modelexport.show.text.console import emit

        emit(validation_json(validation))
    elif not speech.quiet:
        from modelexport.show.text.checks import validation_tables
        from modelexport.show.text.console import show

        show(validation_tables(validation, verbose=speech.verbose))
    return 0 if validation.ok else 1


@click.command()
@model_argument("a")
@model_argument("b")
@format_option("summary", "json")
@output_option("Write to FILE instead of standard output.")
@speech_options
def compare(a: Path, b: Path, form: str, output: Path | None, speech: Speech) -> int:
    """Show what differs between the files A and B, module by module.

    Modules are aligned by their path; all calls of a module count together. Exits with 1 if anything differs.
    """
    from modelexport.api.read import compare as compare_models

    spare_inputs(output, a, b)
    comparison = compare_models(a, b)
    if form == "json":
        from modelexport.show.data.analysis import comparison_json
        from modelexport.show.text.console import emit

        emit(comparison_json(comparison), output)
    elif output is not None or not speech.quiet:
        from modelexport.show.text.checks import comparison_tables
        from modelexport.show.text.console import show

        show(comparison_tables(comparison, verbose=speech.verbose), output)
    return 0 if comparison.identical else 1


@click.command()
@model_argument("model")
@click.argument("query", metavar="QUERY")
@format_option("table", "names", "json")
@output_option("Write to FILE instead of standard output.")
@speech_options
def query(model: Path, query: str, form: str, output: Path | None, speech: Speech) -> int:
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
    are an empty answer.
    """
    from modelexport.api.read import answer as answer_query

    spare_inputs(output, model)
    answer = answer_query(model, query)
    if form == "table":
        from modelexport.show.text.console import show
        from modelexport.show.text.query import query_table

        show(query_table(answer.nodes, answer.provenance), output)
    elif form == "names":
        from modelexport.show.text.console import emit
        from modelexport.show.text.query import query_names

        emit(query_names(answer.nodes, answer.provenance), output)
    else:
        from modelexport.show.text.console import emit
        from modelexport.show.text.query import query_json

        emit(query_json(answer.query, answer.nodes, answer.provenance), output)
    if not speech.quiet:
        for remark in answer.remarks:
            click.echo(printable(remark), err=True)
    return 0


if TYPE_CHECKING:
    from modelexport.record.results.cost import Cost


# Python reads no numbers that are much longer, and no axis is that long.
_DIGITS = 100


@click.command()
@model_argument("file")
@click.option("--at", multiple=True, metavar="AXIS=SIZE,…", help="Sizes of axes that the file leaves open; repeatable.")
@click.option(
    "--by", type=click.Choice(["module", "node"]), default="module", show_default=True, help="What a row is about."
)
@click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Show so many levels of modules.")
@click.option("--all", "everything", is_flag=True, help="Show all modules.")
@output_option("Write to FILE instead of standard output.")
@format_option("text", "json", "csv")
@speech_options
def cost(  # noqa: PLR0913 - one for each option
    *,
    file: Path,
    at: tuple[str, ...],
    by: str,
    depth: int | None,
    everything: bool,
    output: Path | None,
    form: str,
    speech: Speech,
) -> int:
    """Count what FILE takes: FLOPs, parameters, bytes of weights and of activations, module by module.

    \b
    modelexport cost bert.onnx
    modelexport cost bert.onnx --at batch=8,sequence=128 --depth 2
    modelexport cost bert.onnx --by node --format csv -o nodes.csv

    Everything follows from shapes: nothing is run and no weight is read. Amounts are in terms of the axes that the file
    leaves open, until --at gives them sizes. FLOPs are those of matrix multiplications, convolutions and the like, a
    multiplication and an addition being two; the operations of everything else are `other`.

    \b
    exit codes  0  done
                2  the file or its record cannot be used, or it has no such axis
    """
    from modelexport.api.read import cost as cost_of

    spare_inputs(output, file)
    found = cost_of(file, parsed_sizes(at))
    if form == "text":
        from modelexport.show.text.console import show
        from modelexport.show.text.cost_and_profile import cost_tables, node_tables

        if by == "node":
            show(node_tables(found, verbose=speech.verbose), output)
        else:
            show(cost_tables(found, depth=depth, everything=everything, verbose=speech.verbose), output)
        return 0
    _write(found, form, by, output)
    return 0


def _write(found: Cost, form: str, by: str, output: Path | None) -> None:
    from modelexport.show.data.cost_and_profile import cost_csv, cost_json, node_csv
    from modelexport.show.text.console import emit

    if form == "json":
        emit(cost_json(found), output)
    else:
        emit(node_csv(found) if by == "node" else cost_csv(found), output)


def parsed_sizes(texts: Iterable[str]) -> dict[str, int]:
    """`batch=8,sequence=128` as sizes by axis."""
    from modelexport.errors import UserError

    sizes: dict[str, int] = {}
    for item in (item.strip() for text in texts for item in text.split(",")):
        name, equals, number = (part.strip() for part in item.rpartition("="))
        if not equals or not name or not number.isascii() or not number.isdecimal() or len(number) > _DIGITS:
            shown = item if len(item) <= _DIGITS else f"{item[:_DIGITS]}…"
            raise UserError(f"--at {shown!r} is no size of an axis", "Write it like --at batch=8,sequence=128.")
        if sizes.setdefault(name, int(number)) != int(number):
            raise UserError(f"--at gives the axis {name!r} two sizes: {sizes[name]} and {number}", "Give it one.")
    return sizes
