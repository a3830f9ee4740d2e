"""`modelexport query`."""

from __future__ import annotations

from pathlib import Path

import click

from modelexport.cli.options import Speech, format_option, model_argument, output_option, spare_inputs, speech_options
from modelexport.views.printable import printable


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
    from modelexport.api.query import answer as answer_query

    spare_inputs(output, model)
    answer = answer_query(model, query)
    if form == "table":
        from modelexport.views.console import show
        from modelexport.views.query_rows import query_table

        show(query_table(answer.nodes, answer.provenance), output)
    elif form == "names":
        from modelexport.views.output import emit
        from modelexport.views.query_rows import query_names

        emit(query_names(answer.nodes, answer.provenance), output)
    else:
        from modelexport.views.output import emit
        from modelexport.views.query_rows import query_json

        emit(query_json(answer.query, answer.nodes, answer.provenance), output)
    if not speech.quiet:
        for remark in answer.remarks:
            click.echo(printable(remark), err=True)
    return 0
