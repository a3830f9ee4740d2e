"""Entries of a file of models: what steps, rows and the file itself may say alike, held against what is allowed.

Options of commands, variables, limits, sources. Paths are relative to the folder of the file. What runs code (Python
callables, code that comes with a model, most variables of the environment) is refused unless the reader has `trust`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath, PureWindowsPath

from modelexport.errors import FleetInvalid, propose_name, some_of
from modelexport.fleet.fleet_plan import STEP_NAME, Option, Step
from modelexport.fleet.process import Limits
from modelexport.fleet.sections import TomlSection
from modelexport.fleet.verbs import (
    CODE,
    MODEL,
    READ_FILES,
    RESERVED,
    VERBS,
    WRITTEN_FILES,
    is_reference,
    referred_steps,
)

# Variables that change how fast something is computed, or where it is looked for on this machine, and run no code.
HARMLESS = frozenset({
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HUB_OFFLINE",
    "TOKENIZERS_PARALLELISM", "PYTHONHASHSEED", "PYTHONUNBUFFERED", "TZ", "LANG",
})  # fmt: skip
TRUST_HINT = "If you trust the file, add --trust."


@dataclass(frozen=True)
class EntryReader:
    """
    base   the folder that paths are relative to
    trust  what runs code may be asked for
    """

    base: Path
    trust: bool = False

    def options(self, section: TomlSection, known: frozenset[str] | None = None) -> Mapping[str, Option]:
        """Options of a command, under their long names. Whether the command has them is asked when all is read."""
        options: dict[str, Option] = {}
        for key in section.content:
            name = key.replace("_", "-")
            if known is not None and name not in known:
                raise section.fault(key, f"there is no key {key!r}", propose_name(name, known, "It may have"))
            if name in RESERVED:
                raise section.fault(key, f"{key} is set by the fleet", "Leave it out; see `exporters`, `task`, `from`.")
            if name in CODE and not self.trust:
                raise section.fault(key, f"{key} runs code that comes with a model", TRUST_HINT)
            value = section.value(key, bool, int, float, str, list)
            assert value is not None
            options[name] = self._option(section, key, tuple(value) if isinstance(value, list) else value)
        return options

    def _option(self, section: TomlSection, key: str, value: Option) -> Option:
        name = key.replace("_", "-")
        if isinstance(value, tuple):
            if not all(isinstance(item, str | int | float) for item in value):
                raise section.wrong(key, list(value), "a list of texts or numbers")
            return tuple(str(self._option(section, key, str(item))) for item in value)
        if name in WRITTEN_FILES and not (isinstance(value, str) and _is_plain(value)):
            raise section.wrong(key, value, "the name of a file without folders: it is written beside the model")
        if name in READ_FILES and isinstance(value, str) and not is_reference(value):
            return str(self.base / value)
        return value

    def environment(self, section: TomlSection) -> Mapping[str, str]:
        variables = {}
        table = section.table("env")
        for name in table.content:
            if not self.trust and name not in HARMLESS:
                hint = f"{TRUST_HINT} Without it, a file may set {', '.join(sorted(HARMLESS))}."
                raise table.fault(name, f"the variable {name} can run code", hint)
            value = table.value(name, str, int)
            if not name or "=" in name or "\0" in f"{name}{value}":
                raise table.fault(name, f"{name!r} is no name of a variable")
            variables[name] = str(value)
        return variables

    def source(self, section: TomlSection, value: str) -> str:
        """A model, as `export` takes it: a path becomes absolute, and a callable is code."""
        if value.startswith("-") or "\0" in value:
            raise section.fault("source", f"source is {value!r}, which is no model")
        module, colon, _ = value.partition(":")
        path = self.base / value
        if not colon or path.exists():
            return str(path) if path.exists() or value.startswith((".", "/")) else value
        if not self.trust:
            raise section.fault("source", f"source is {value!r}: a callable is code", TRUST_HINT)
        file = self.base / module
        return f"{file}{value[len(module) :]}" if module.endswith(".py") else value


def is_inside(path: str) -> bool:
    """Whether a relative path stays where it starts, on any system."""
    forms = (PurePosixPath(path), PureWindowsPath(path))
    return not any(form.is_absolute() or form.drive or ".." in form.parts for form in forms)


def _is_plain(name: str) -> bool:
    """The name of a file that no other output of a step has."""
    return bool(STEP_NAME.fullmatch(name)) and not name.startswith((MODEL.partition(".")[0], "report", "page", "log"))


def limits_of(section: TomlSection, above: Limits) -> Limits:
    """Those of a section, else those of what is around it."""
    timeout, memory = section.duration("timeout"), section.size("memory")
    return Limits(timeout or above.timeout, memory or above.memory)


def resources_of(section: TomlSection) -> Mapping[str, float]:
    """`resources = { GPU = 1 }`"""
    table = section.table("resources")
    amounts = {}
    for name in table.content:
        amount = table.value(name, int, float)
        if amount is None or not 0 < amount < float("inf"):
            raise table.wrong(name, amount, "an amount above 0")
        amounts[name] = float(amount)
    return amounts


def limited(step: Step, section: TomlSection) -> Step:
    """With the limits of a row, which go over those of the step."""
    return replace(step, limits=limits_of(section, step.limits), resources=resources_of(section) or step.resources)


def connect_steps(steps: Sequence[Step], fault: TomlSection, *, has_file: bool) -> Iterator[Step]:
    """Each step with the step whose file it reads, and a page with the reports of what stands before it.

    Without `from`, a step reads the file of the first step that makes one: `verify`, `int8` and `profile` all read
    that of `export`.
    """
    before: dict[str, Step] = {}
    for step in steps:
        verb = VERBS[step.verb]
        makers = [name for name, other in before.items() if VERBS[other.verb].writes == MODEL]
        reads = step.reads or (makers[0] if makers else "") if verb.takes == "file" else ""
        if verb.takes == "file" and not reads and not has_file:
            raise _missing(fault, step, "export")
        for name in filter(None, (reads, *referred_steps(step.options))):
            if name not in before:
                raise _missing(fault, step, name, before)
        if step.reads and step.reads not in makers:
            raise fault.fault("steps", f"{step.name} reads {step.reads!r}, which writes no model")
        known = [name for name, other in before.items() if other.verb in ("verify", "profile") and other.reads == reads]
        before[step.name] = replace(step, reads=reads, after=tuple(known) if step.verb == "view" else ())
        yield before[step.name]


def _missing(fault: TomlSection, step: Step, name: str, before: Mapping[str, Step] | None = None) -> FleetInvalid:
    known = some_of(list(before), 8) if before else "nothing"
    hint = f"Before it come: {known}. Put {name!r} into `steps`, before {step.name!r}."
    return fault.fault("steps", f"{step.name} needs the file of {name!r}, which is no step before it", hint)
