"""The plan: rows and steps as immutable values, and the names that they have in paths.

    Row("bert-dynamo", source="/models/bert", exporter="dynamo", steps=(Step("export", "export"), Step("verify", …)))

Parsed by `manifest.py`, expanded by `rows.py`; nothing here reads a file. A name comes from whoever wrote the file of
models. In paths it is made of letters, digits, dots and dashes alone, so that no row writes outside of its folder.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from modelexport.fleet.process import Limits

# What an option of a command can be: a flag, one value, or several.
Option = bool | int | float | str | tuple[str, ...]

# The module of steps that are verbs.
PROGRAM = "modelexport"

STEP_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
# Of a name in a path; file systems have 255, and folders inside of it need some.
_LONGEST = 80
# Names that mean a device to Windows, whatever follows the dot; shared folders are opened from there too.
_DEVICES = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Step:
    """
    verb       the command that it runs
    reads      the step whose file it is given; empty for the model of the row
    after      steps whose results it uses if they are there
    resources  what a worker of a cluster must offer: `GPU` 1
    module     the Python module that is run, and `words` its command line. Another one than this program is for code
               that has work of its own (`measure/workers.py`); no file of models can name one. `verb` is then a label
    """

    name: str
    verb: str
    reads: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    resources: Mapping[str, float] = field(default_factory=dict)
    module: str = PROGRAM
    words: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Budget:
    """What a figure of a step may be at most; `operators` has the counts of operators, or their names alone (-1)."""

    step: str
    figure: str
    limit: float = 0
    operators: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """One model, with all that is done to it.

    name         its own, and that of its folder
    source       the PyTorch model, as `export -m` takes it; empty for a file without one
    file         an ONNX file that is there already; empty if the first step exports one
    load         options of all steps that load the model
    environment  variables for its processes
    package      what is exported is a folder
    code         the folder where its Python modules are looked for, if it needs one
    """

    name: str
    source: str = ""
    file: str = ""
    task: str = ""
    exporter: str = ""
    steps: tuple[Step, ...] = ()
    budgets: tuple[Budget, ...] = ()
    load: Mapping[str, Option] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    package: bool = False
    code: str = ""

    def step(self, name: str) -> Step | None:
        return next((step for step in self.steps if step.name == name), None)


@dataclass(frozen=True)
class ClusterSettings:
    """
    workers  how many to ask for
    options  keywords of the deployer, as they are
    hosts    of `ssh`: machines for the workers; the scheduler is on the first
    """

    workers: int = 0
    hosts: tuple[str, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """
    jobs     local processes at a time, 0 for as many as there are cores
    retries  how often a step is started again that something outside of it has killed
    """

    name: str
    rows: tuple[Row, ...]
    output: str = ""
    jobs: int = 0
    retries: int = 1
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    notes: tuple[str, ...] = ()

    @property
    def step_names(self) -> tuple[str, ...]:
        """Of all rows, in the order in which they come."""
        return tuple(dict.fromkeys(step.name for row in self.rows for step in row.steps))


def safe_name(name: str) -> str:
    """A name that can be part of a path: `google/bert` is `google-bert-1f0c5a`, which no other name becomes."""
    plain = _UNSAFE.sub("-", name).strip(".-")[:_LONGEST]
    if plain and plain == name and not _DEVICES.fullmatch(plain):
        return plain
    return f"{plain or 'row'}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:6]}".lstrip("-")


def repeated_name(names: Iterable[str]) -> str | None:
    """The first name that is there twice. Some file systems do not tell `Bert` from `bert`."""
    seen = set[str]()
    for name in names:
        if name.casefold() in seen:
            return name
        seen.add(name.casefold())
    return None
