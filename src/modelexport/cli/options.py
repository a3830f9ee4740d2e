"""Options that several verbs have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

_Function = TypeVar("_Function", bound=Callable[..., Any])
Decorator = Callable[[_Function], _Function]


@dataclass(frozen=True, slots=True)
class Speech:
    """How much a command says."""

    quiet: bool
    verbose: bool


def model_argument(name: str) -> Decorator[Any]:
    return click.argument(name, metavar=name.upper(), type=click.Path(path_type=Path))


def source_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """The PyTorch model."""
    return click.option(
        "-m",
        "--model",
        metavar="MODEL",
        required=True,
        help="A folder, a config.json, a hub id, or package.module:callable.",
    )(function)


def output_option(help_text: str) -> Decorator[Any]:
    return click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help=help_text)


def format_option(*formats: str) -> Decorator[Any]:
    """The first format is the default."""
    return click.option(
        "--format", "form", type=click.Choice(formats), default=formats[0], show_default=True, help="Output format."
    )


def speech_options(function: Callable[..., int]) -> Callable[..., int]:
    """How much the command says; every verb has these, and gets them as `speech`."""

    @wraps(function)
    def with_speech(*, quiet: bool, verbose: bool, **options: Any) -> int:
        return function(speech=Speech(quiet, verbose), **options)

    decorated: Callable[..., int] = with_speech
    for option in (
        # Looked for before anything is parsed, so that a failure of parsing itself can be debugged.
        click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."),
        click.option("-v", "--verbose", is_flag=True, help="Say more."),
        click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and what was asked for."),
    ):
        decorated = option(decorated)
    return decorated


def spare_inputs(output: Path | None, *inputs: Path) -> None:
    """A report never goes where a model or its record is."""
    from modelexport.errors import UserError

    if output is None:
        return
    files = [given for given in inputs if given.name]  # `.` and `/` are folders, which reading them will say
    taken = {path.resolve() for given in files for path in (given, given.with_suffix(".hierarchy.json"))}
    if output.resolve() in taken:
        raise UserError(f"{output} is what the report is about, or its record", "Give the report another name.")
