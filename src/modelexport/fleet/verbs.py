"""Verbs as steps: which commands a fleet can run, what each is given, and what it writes.

    arguments_of(row, step, …)      export --model /models/bert --output model.onnx --exporter dynamo --format json

The command runs in a folder of its own and writes there, under names that are the same for every row. What an earlier
step wrote is named by `Produced`, because only whoever runs it knows where that is.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from modelexport.fleet.fleet_plan import PROGRAM, Option, Row, Step

MODEL, FOLDER, REPORT, PAGE, LOG = "model.onnx", "model", "report.json", "page.html", "log.txt"


@dataclass(frozen=True)
class Produced:
    """A file or folder that an earlier step of the same row wrote."""

    step: str
    name: str


Argument = str | Produced


@dataclass(frozen=True)
class Verb:
    """
    takes   what it is about: the `source` of the row, or a `file` that is there or was made
    model   it is given the source as well, where the row has one
    writes  a model, a page, or nothing but its report
    report  whether the report is what it prints, or a file that it is given the name of; a page has none
    """

    takes: str = "file"
    model: bool = False
    writes: str = ""
    report: str = "file"


VERBS: Mapping[str, Verb] = {
    "export": Verb("source", model=True, writes=MODEL, report="printed"),
    "attach": Verb(model=True, writes=MODEL, report="printed"),
    "quantize": Verb(writes=MODEL, report="printed"),
    "run-tool": Verb(writes=MODEL, report="printed"),
    "verify": Verb(model=True),
    "strategies": Verb(model=True),
    "profile": Verb(),
    "analyze": Verb(),
    "validate": Verb(report="printed"),
    "cost": Verb(),
    "view": Verb(writes=PAGE, report=""),
}

# Options of all commands that load the model. `load` of a row gives them to each of its steps.
LOADING = frozenset(
    "dtype device seed trust-remote-code allow-pickle text image input input-specs inputs".split()  # noqa: SIM905 - a list of words reads better
)
# What the fleet itself says. `revision`: no command has it.
RESERVED = frozenset("model task output format exporter quiet verbose debug help serve port list force".split())  # noqa: SIM905
# Options that name files to read. They are looked for beside the file of models, and are part of what is remembered.
READ_FILES = frozenset("inputs input-specs image calibration before against overlay".split())  # noqa: SIM905
# Options that name files to write: they stay in the folder of the step.
WRITTEN_FILES = frozenset({"jit-graph", "trace"})
# Options that run code that comes with a model.
CODE = frozenset({"trust-remote-code", "allow-pickle"})

# `{export}`: the file of the step `export`; `{verify.report}`: what it reports.
_REFERENCE = re.compile(r"\{([\w.-]+?)(\.report)?\}")


def referred_steps(options: Mapping[str, Option]) -> tuple[str, ...]:
    """The steps that the values of options name."""
    return tuple(dict.fromkeys(match[1] for value in _texts(options) if (match := _REFERENCE.fullmatch(value))))


def is_reference(value: str) -> bool:
    return _REFERENCE.fullmatch(value) is not None


def output_name(row: Row, step: Step) -> str:
    """What it writes beside its report; empty for a step that only reports."""
    writes = VERBS[step.verb].writes
    return FOLDER if writes == MODEL and row.package else writes


def expected_outputs(row: Row, step: Step) -> tuple[str, ...]:
    """What has to be there when it has done its work; of another program, only its exit code is known."""
    if step.module != PROGRAM:
        return ()
    report = REPORT if VERBS[step.verb].report else ""
    return tuple(filter(None, (output_name(row, step), report)))


def arguments_of(row: Row, step: Step, available: Collection[str]) -> tuple[Argument, ...]:
    """The command line behind `modelexport`, or that of another program.

    available  steps that have written something; those of `after` are used if they are among them
    """
    if step.module != PROGRAM:
        return step.words
    verb = VERBS[step.verb]
    arguments: list[Argument] = [step.verb]
    if verb.takes == "file":
        arguments.append(_input_of(row, step))
    # What is held against another file needs no model.
    if verb.model and row.source and "against" not in step.options:
        arguments += ["--model", row.source, *(["--task", row.task] if row.task else [])]
        options = {**row.load, **step.options}
    else:
        options = dict(step.options)
    if step.verb == "export" and row.exporter:
        arguments += ["--exporter", row.exporter]
    for name, value in options.items():
        arguments += _option(row, name, value)
    for name in step.after:
        if name in available:
            arguments += ["--overlay", Produced(name, REPORT)]
    return (*arguments, *_output_arguments(row, step, verb))


def _input_of(row: Row, step: Step) -> Argument:
    if not step.reads:
        return row.file
    return _output_of(row, step.reads)


def _output_of(row: Row, name: str) -> Produced:
    step = row.step(name)
    assert step is not None, name  # the manifest has checked it
    return Produced(name, output_name(row, step) or REPORT)


def _output_arguments(row: Row, step: Step, verb: Verb) -> Iterator[str]:
    if written := output_name(row, step):
        yield from ("--output", written)
    if verb.report:
        yield from ("--format", "json")
    if verb.report == "file":
        yield from ("--output", REPORT)


def _option(row: Row, name: str, value: Option) -> Iterator[Argument]:
    """`--name=value`, so that no value is taken for an option; a reference is a file, which has no such name."""
    if isinstance(value, bool):
        # Of flags, `false` is what they are without being named; only those that come in pairs have a name for it.
        yield from [f"--{name}"] if value else [f"--no-{name}"] if name in _PAIRED else []
        return
    for text in (value,) if isinstance(value, int | float | str) else value:
        match = _REFERENCE.fullmatch(str(text))
        if match is None:
            yield f"--{name}={text}"
        else:
            yield from (f"--{name}", Produced(match[1], REPORT) if match[2] else _output_of(row, match[1]))


_PAIRED = frozenset({"external-data"})


def _texts(options: Mapping[str, Option]) -> Iterator[str]:
    for value in options.values():
        if isinstance(value, str):
            yield value
        elif isinstance(value, tuple):
            yield from value
