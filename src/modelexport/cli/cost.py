"""`modelexport cost`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from modelexport.cli.options import Speech, format_option, model_argument, output_option, spare_inputs, speech_options

if TYPE_CHECKING:
    from modelexport.record.cost import Cost


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
    from modelexport.api.cost import cost as cost_of

    spare_inputs(output, file)
    found = cost_of(file, parsed_sizes(at))
    if form == "text":
        from modelexport.views.console import show
        from modelexport.views.cost_tables import cost_tables, node_tables

        if by == "node":
            show(node_tables(found, verbose=speech.verbose), output)
        else:
            show(cost_tables(found, depth=depth, everything=everything, verbose=speech.verbose), output)
        return 0
    _write(found, form, by, output)
    return 0


def _write(found: Cost, form: str, by: str, output: Path | None) -> None:
    from modelexport.views.cost_data import cost_csv, cost_json, node_csv
    from modelexport.views.output import emit

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
