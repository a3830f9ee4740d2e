"""Shared options: the decorators that give several verbs the same arguments.

    model_argument, source_option     which file, which PyTorch model
    loading_options, repeated_options how the model is loaded and what it is fed; `made_input_options` where no model is
    export_options, tagging_options   how it is exported, and how its nodes are attributed and tagged
    storage_options                   which files weights are written to
    force_option                      whether a package may be written into a folder that is not empty
    memory_option                     how much memory running the model and a file may take
    target_option, embed_option       the file that is written, and how much goes into it; `file_option` for other files
    preset_option, samples_option     any option with a default that is shown; how many inputs are made
    tree_options                      how much of the module tree is shown
    report_options                    --output, --format, --quiet and --verbose: the verb gets them as `report`
    verbosity_options                 --quiet and --verbose alone: the verb gets them as `verbosity`

Long names of options are keywords of the api, so that a verb hands on what it does not know. Values from a fixed set
are handed on as they are where the api knows the set: it proposes the nearest name.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from rich.console import RenderableType

_Function = TypeVar("_Function", bound=Callable[..., Any])
Decorator = Callable[[_Function], _Function]
_REPORT_FILE = "Write to FILE instead of standard output."


@dataclass(frozen=True, slots=True)
class Verbosity:
    quiet: bool = False
    verbose: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """How the result of a verb is shown, and where it goes: None is standard output."""

    form: str
    output: Path | None
    verbosity: Verbosity

    @property
    def verbose(self) -> bool:
        return self.verbosity.verbose

    @property
    def is_wanted(self) -> bool:
        """Whether somebody reads text: not if it would be shown on a terminal that is to stay quiet."""
        return self.output is not None or not self.verbosity.quiet

    def show(self, result: object, view: Callable[[], Iterable[RenderableType]], rows: str = "") -> None:
        """Write a result as JSON or CSV (see `show/data/results.py`), or what `view` makes of it for people."""
        if self.form in ("json", "csv"):
            from modelexport.show.data.results import to_csv, to_json
            from modelexport.show.text.console import emit

            text = to_json(result) if self.form == "json" else to_csv(result, rows)
            emit(text, self.output, quiet=self.verbosity.quiet)
        else:
            from modelexport.show.text.console import show

            show(view(), self.output, quiet=self.verbosity.quiet)

    def show_unless_quiet(self, result: object, view: Callable[[], Iterable[RenderableType]]) -> None:
        """The same of a verb that does something else as well: --quiet leaves the text out."""
        if self.form in ("json", "csv") or self.is_wanted:
            self.show(result, view)

    def print_notes(self, notes: Iterable[str]) -> None:
        """Notes that are no part of the view, on standard error; JSON has them, and other formats stay silent."""
        if self.form not in ("json", "csv", "names"):
            print_notes((f"note: {note}" for note in notes), self.verbosity)


def model_argument(name: str) -> Decorator[Any]:
    return click.argument(name, metavar=name.upper(), type=click.Path(path_type=Path))


def source_option(*, required: bool = True, purpose: str = "") -> Decorator[Any]:
    kinds = "a folder, a config.json, a hub id, or package.module:callable."
    text = f"The PyTorch model: {kinds} {purpose}" if purpose else f"A{kinds[1:]}"
    return click.option("-m", "--model", metavar="MODEL", required=required, help=text)


def target_option(help_text: str, *, required: bool = True) -> Decorator[Any]:
    return file_option("-o", "--output", required=required, help=help_text)


def file_option(*names: str, metavar: str = "FILE", **settings: Any) -> Decorator[Any]:
    return click.option(*names, type=_FilePath(path_type=Path), metavar=metavar, **settings)


class _FilePath(click.Path):
    """`dir.onnx/` names a folder, and Path would leave the slash out."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        written = os.fspath(value)
        if written.endswith(("/", os.sep)) and Path(written).suffix == ".onnx":
            self.fail(f"{written!r} is a folder by its last sign, and a file by its name", parameter, context)
        return super().convert(value, parameter, context)


def preset_option(name: str, default: str | float, help_text: str, **settings: Any) -> Decorator[Any]:
    """One whose default is shown in the help text."""
    return click.option(name, default=default, show_default=True, help=help_text, **settings)


def force_option(function: _Function) -> _Function:
    return click.option("--force", is_flag=True, help="For a package: write into a folder that is not empty.")(function)


def memory_option(function: _Function) -> _Function:
    text = "Take at most so much memory, 4GB, say: run model and file in pieces."
    return click.option("--memory", metavar="SIZE", help=text)(function)


def samples_option(default: int) -> Decorator[Any]:
    return preset_option("--samples", default, "Make so many inputs.", type=click.IntRange(min=1), metavar="N")


def embed_option(help_text: str = "") -> Decorator[Any]:
    """Choices are checked by click here, so that nothing is run for a word that is wrong."""
    text = help_text or "How much is written into the file: keys on nodes and the record, the record, or nothing."
    return preset_option("--embed", "full", text, type=click.Choice(["full", "lean", "none"]))


def verbosity_options(function: Callable[..., int]) -> Callable[..., int]:
    @wraps(function)
    def with_verbosity(*, quiet: bool, verbose: bool, **options: Any) -> int:
        return function(verbosity=Verbosity(quiet, verbose), **options)

    return _decorated(
        with_verbosity,
        (
            click.option("-q", "--quiet", is_flag=True, help="Say nothing but errors and what was asked for."),
            click.option("-v", "--verbose", is_flag=True, help="Say more."),
            # Looked for before anything is parsed, so that a failure of parsing itself can be debugged.
            click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors."),
        ),
    )


def report_options(*formats: str, to_file: bool = True, keyword: str = "report") -> Decorator[Any]:
    """The first format is the default.

    to_file  whether --output is about the report; else it is the model that the verb writes
    keyword  what the verb gets it as, for `quantize`, which has an option --report
    """

    def decorate(function: Callable[..., int]) -> Callable[..., int]:
        @wraps(function)
        def with_report(*, form: str, verbosity: Verbosity, **options: Any) -> int:
            output = options.pop("output") if to_file else None
            return function(**{keyword: Report(form, output, verbosity)}, **options)

        choice = click.option(
            "--format", "form", type=click.Choice(formats), default=formats[0], show_default=True, help="Output format."
        )
        target = (target_option(_REPORT_FILE, required=False),) if to_file else ()
        return _decorated(verbosity_options(with_report), (choice, *target))

    return decorate


def spare_inputs(output: Path | None, *inputs: Path) -> None:
    """A report never goes where a model or its record is."""
    from modelexport.errors import UserError
    from modelexport.record.document import SIDECAR_SUFFIX

    if output is None:
        return
    files = [path for path in inputs if path.name]  # `.` and `/` are folders, which reading them will say
    protected = {path.resolve() for file in files for path in (file, file.with_suffix(SIDECAR_SUFFIX))}
    if output.resolve() in protected:
        raise UserError(f"{output} is what the report is about, or its record", "Give the report another name.")


# Tuples and not decorators, because verbs combine them: what is in a tuple stands in the help text in this order.
_LOADING = (
    click.option("--task", metavar="NAME", help="The task that chooses the Auto class, such as text-classification."),
    click.option(
        "--dtype",
        metavar="NAME",
        help="Load weights as float32, float16, bfloat16, float64, or auto: as they are stored. Default: float32, or "
        "that of the FILE; what a callable builds keeps its own.",
    ),
    preset_option("--device", "cpu", "Where the model runs.", metavar="NAME"),
    preset_option("--seed", 0, "For random weights and made-up inputs.", type=int),
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with the model."),
    click.option("--allow-pickle", is_flag=True, help="Load weights that are not safetensors."),
)
_INPUTS = (
    click.option("--text", help="Text to make inputs from, with the model's tokenizer."),
    file_option("--image", help="Image to make inputs from, with its processor."),
    click.option(
        "--input", multiple=True, metavar="NAME=SHAPE[:DTYPE]", help="Shape and type of an input; repeatable."
    ),
    file_option("--input-specs", help="A JSON file with shapes and types of inputs."),
)
_ARRAYS = "An .npz file with the inputs themselves"
_GIVEN = (file_option("--inputs", help=f"{_ARRAYS}."),)
_GIVEN_SEVERAL = (file_option("--inputs", multiple=True, help=f"{_ARRAYS}; repeatable, each is one run."),)
_STORING = (
    click.option(
        "--external-data/--no-external-data", default=None, help="Weights in a file beside the model, or in it."
    ),
    click.option("--shard-size", metavar="SIZE", help="Weights in several files beside the model, of 2GB each, say."),
)
_EXPORTING = (
    click.option(
        "--no-weights", is_flag=True, help="Write the graph alone: weights have type, shape and origin; see `fill`."
    ),
    click.option("--no-optimize", is_flag=True, help="Leave the graph as it is before torch's optimizer."),
    click.option("--static", is_flag=True, help="Fix every axis."),
    click.option("--dynamic", is_flag=True, help="Fail if batch and sequence axes cannot be dynamic."),
    click.option(
        "--target",
        metavar="genai|optimum|transformersjs",
        help="Lay the folder out for this consumer: file names, inputs and outputs, configuration.",
    ),
    click.option("--force", is_flag=True, help="Write into a folder that is not empty."),
    click.option(
        "--exporter",
        metavar="dynamo|transformers|torchscript",
        help="The exporter; dynamo if not given, and transformers for models that generate.",
    ),
    click.option("--opset", type=int, help="The opset to export to; torch's default if not given."),
    *_STORING,
    click.option("--no-check", is_flag=True, help="Do not compare the file's outputs with PyTorch's."),
    click.option("--atol", type=float, metavar="A", help="Absolute tolerance of that comparison; else by type."),
    click.option("--rtol", type=float, metavar="R", help="Relative tolerance of that comparison; else by type."),
    file_option("--jit-graph", help="Also write the TorchScript graph, for reading."),
    click.option(
        "--fx-graph",
        metavar="torch_export|symbolic_trace|both",
        help="Also write the FX graph beside the model; the strategy fx_graph then uses it.",
    ),
    preset_option(
        "--strategy",
        "enhanced_semantic",
        "How nodes are attributed: enhanced_semantic, htp, fx_graph, usage_based, universal or all.",
        metavar="NAME",
    ),
)
_TAGGING = (
    preset_option("--tag-policy", "default", "Whose classes appear in tags.", metavar="default|hf"),
    preset_option("--torch-nn", "exceptions", "How much of torch.nn appears in tags.", metavar="all|exceptions|none"),
    click.option(
        "--torch-nn-exception",
        multiple=True,
        metavar="CLASS",
        help="torch.nn classes that do; repeatable, replaces the list.",
    ),
    click.option("--keep", multiple=True, metavar="GLOB", help="Modules that appear, by path or class; repeatable."),
    click.option("--drop", multiple=True, metavar="GLOB", help="Modules that do not, by path or class; repeatable."),
    preset_option("--embed", "full", "Keys on nodes and the record, the record, or nothing.", metavar="full|lean|none"),
    preset_option("--names", "torch", "Node names: torch's, or paths of modules.", metavar="torch|hierarchical"),
    click.option("--strip-exporter-metadata", is_flag=True, help="Remove what torch wrote on nodes."),
)


def loading_options(function: _Function) -> _Function:
    return _decorated(function, (*_LOADING, *_INPUTS, *_GIVEN))


def repeated_options(function: _Function) -> _Function:
    """The same for a verb that can run the model on several inputs."""
    return _decorated(function, (*_LOADING, *_INPUTS, *_GIVEN_SEVERAL))


def tagging_options(function: _Function) -> _Function:
    return _decorated(function, _TAGGING)


def storage_options(function: _Function) -> _Function:
    return _decorated(function, _STORING)


def export_options(function: _Function) -> _Function:
    return _decorated(function, (*_LOADING, *_INPUTS, *_GIVEN, *_EXPORTING, *_TAGGING))


def made_input_options(*, samples: int = 0) -> Decorator[Any]:
    """Inputs that are made up for a file that runs without its model; `samples` of them, if that can be chosen."""
    options = (
        click.option("--input", multiple=True, metavar="NAME=SHAPE", help="Make this input in this shape; repeatable."),
        *((samples_option(samples),) if samples else ()),
        preset_option("--seed", 0, "For the inputs that are made.", type=int),
    )
    return lambda function: _decorated(function, options)


def tree_options(function: _Function) -> _Function:
    return _decorated(
        function,
        (
            click.option("--depth", type=click.IntRange(min=0), metavar="N", help="Show so many levels of modules."),
            click.option("--all", "everything", is_flag=True, help="Show all modules."),
        ),
    )


def _decorated(function: _Function, options: tuple[Callable[[Any], Any], ...]) -> _Function:
    for option in reversed(options):  # the one that is applied last comes first in the help text
        function = option(function)
    return function


@contextmanager
def quiet_run(verbosity: Verbosity) -> Iterator[Callable[[str], None] | None]:
    """Keep other tools' warnings to themselves, and show on a terminal which step is running."""
    with warnings.catch_warnings():
        if not verbosity.verbose:
            warnings.simplefilter("ignore")  # exporters warn about themselves; what matters comes as notes
        if verbosity.quiet or not sys.stderr.isatty():
            yield None
            return
        from modelexport.show.text.console import shown_progress

        with shown_progress() as progress:
            yield progress


def print_notes(notes: Iterable[str], verbosity: Verbosity) -> None:
    """On standard error: standard output may be read by a program."""
    from modelexport.errors import printable_line
    from modelexport.record.limits import MESSAGE_CHARACTERS

    if not verbosity.quiet:
        for note in notes:
            click.echo(printable_line(note, MESSAGE_CHARACTERS), err=True)
