"""Options that several verbs have.

The options of the verbs that run a model. Their long names are the keywords of the api.

Values from a fixed set are taken as they are: the api knows the set and proposes the nearest name.

What the verbs that run a model have in common.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

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


_FILE = click.Path(path_type=Path)

_LOADING = (
    click.option("--task", metavar="NAME", help="The task that chooses the Auto class, such as text-classification."),
    click.option("--dtype", metavar="NAME", help="Load weights as float32, float16, bfloat16 or float64."),
    click.option("--device", default="cpu", show_default=True, metavar="NAME", help="Where the model runs."),
    click.option("--seed", type=int, default=0, show_default=True, help="For random weights and made-up inputs."),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model."),
    click.option("--allow-pickle", is_flag=True, help="Load weights that are not safetensors."),
)
_INPUTS = (
    click.option("--text", help="Text to make inputs from, with the model's tokenizer."),
    click.option("--image", type=_FILE, metavar="FILE", help="Image to make inputs from, with its processor."),
    click.option(
        "--input", multiple=True, metavar="NAME=SHAPE[:DTYPE]", help="Shape and type of an input; repeatable."
    ),
    click.option("--input-specs", type=_FILE, metavar="FILE", help="A JSON file with shapes and types of inputs."),
)
_GIVEN = (click.option("--inputs", type=_FILE, metavar="FILE", help="An .npz file with the inputs themselves."),)
_GIVEN_SEVERAL = (
    click.option(
        "--inputs",
        type=_FILE,
        multiple=True,
        metavar="FILE",
        help="An .npz file with the inputs themselves; repeatable, each is one run.",
    ),
)
_EXPORTING = (
    click.option("--static", is_flag=True, help="Fix every axis."),
    click.option("--dynamic", is_flag=True, help="Fail if batch and sequence axes cannot be dynamic."),
    click.option(
        "--exporter", default="dynamo", show_default=True, metavar="dynamo|torchscript", help="torch's exporter."
    ),
    click.option("--opset", type=int, help="The opset to export to; torch's default if not given."),
    click.option(
        "--external-data/--no-external-data", default=None, help="Weights in a file beside the model, or in it."
    ),
    click.option("--no-check", is_flag=True, help="Do not compare the file's outputs with PyTorch's."),
    click.option("--atol", type=float, default=1e-4, show_default=True, help="Absolute tolerance of that comparison."),
    click.option("--rtol", type=float, default=1e-4, show_default=True, help="Relative tolerance of that comparison."),
    click.option("--jit-graph", type=_FILE, metavar="FILE", help="Also write the TorchScript graph, for reading."),
    click.option(
        "--fx-graph",
        metavar="torch_export|symbolic_trace|both",
        help="Also write the FX graph beside the model; the strategy fx_graph then uses it.",
    ),
    click.option(
        "--strategy",
        default="enhanced_semantic",
        show_default=True,
        metavar="NAME",
        help="How nodes are attributed: enhanced_semantic, htp, fx_graph, usage_based, universal or all.",
    ),
)
_TAGGING = (
    click.option(
        "--tag-policy", default="default", show_default=True, metavar="default|hf", help="Whose classes appear in tags."
    ),
    click.option(
        "--torch-nn",
        default="exceptions",
        show_default=True,
        metavar="all|exceptions|none",
        help="How much of torch.nn appears in tags.",
    ),
    click.option(
        "--torch-nn-exception",
        multiple=True,
        metavar="CLASS",
        help="torch.nn classes that do; repeatable, replaces the list.",
    ),
    click.option("--keep", multiple=True, metavar="GLOB", help="Modules that appear, by path or class; repeatable."),
    click.option("--drop", multiple=True, metavar="GLOB", help="Modules that do not, by path or class; repeatable."),
    click.option(
        "--embed",
        default="full",
        show_default=True,
        metavar="full|lean|none",
        help="Keys on nodes and the record, the record, or nothing.",
    ),
    click.option(
        "--names",
        default="torch",
        show_default=True,
        metavar="torch|hierarchical",
        help="Node names: torch's, or paths of modules.",
    ),
    click.option("--strip-exporter-metadata", is_flag=True, help="Remove what torch wrote on nodes."),
)


def loading_options(function: _Function) -> _Function:
    """Where a model and its inputs come from."""
    return _decorated(function, (*_LOADING, *_INPUTS, *_GIVEN))


def repeated_options(function: _Function) -> _Function:
    """The same for a verb that can run the model on several inputs."""
    return _decorated(function, (*_LOADING, *_INPUTS, *_GIVEN_SEVERAL))


def tagging_options(function: _Function) -> _Function:
    """What is written about nodes, and where."""
    return _decorated(function, _TAGGING)


def export_options(function: _Function) -> _Function:
    return _decorated(function, (*_LOADING, *_INPUTS, *_GIVEN, *_EXPORTING, *_TAGGING))


def _decorated(function: _Function, options: tuple[Callable[[Any], Any], ...]) -> _Function:
    for option in reversed(options):
        function = option(function)
    return function


if TYPE_CHECKING:
    from modelexport.record.results.files import ExportResult


@contextmanager
def quiet_run(speech: Speech) -> Iterator[Callable[[str], None] | None]:
    """Keep other tools' warnings to themselves, and show on a terminal which step is running."""
    with warnings.catch_warnings():
        if not speech.verbose:
            warnings.simplefilter("ignore")  # exporters warn about themselves; what matters comes as notes
        if speech.quiet or not sys.stderr.isatty():
            yield None
            return
        from modelexport.show.text.console import shown_progress

        with shown_progress() as progress:
            yield progress


def show_export(result: ExportResult, form: str, speech: Speech) -> None:
    from modelexport.show.text.written_files import ExportSummary, export_json, export_lines

    summary = ExportSummary(result.files, result.provenance, result.check, result.notes, result.seconds)
    if form == "json":
        from modelexport.show.text.console import emit

        emit(export_json(summary))
    elif not speech.quiet:
        from modelexport.show.text.console import show

        show(export_lines(summary, verbose=speech.verbose))
