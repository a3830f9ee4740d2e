"""Every error that modelexport raises on purpose.

    ModelExportError              exit 3   the tool failed
    └── UserError                 exit 2   the user can fix it
        ├── ModelNotFound                  no such folder, hub id or callable
        ├── ModelUnloadable                found, but it cannot be turned into a module
        ├── InputError                     an input's name, shape, type or file is wrong
        ├── ExportFailed                   torch cannot export this model this way
        ├── RuntimeFailed                  ONNX Runtime cannot load or run the file
        ├── ToolFailed                     a tool could not do its work, or wrote what cannot be used
        ├── FileUnreadable                 missing, truncated, or not ONNX
        │   └── FileMalformed              ONNX, with parts that cannot be read
        ├── FileUnwritable                 no permission, no room, no such folder
        ├── ModelMismatch                  the file was not made from the model
        ├── ModelUnrepeatable              it gives other numbers each time that it runs
        ├── RecordMissing                  the file carries no hierarchy record
        ├── RecordUnreadable               the record is damaged or of a newer schema
        ├── RecordMismatch                 the record was made for another graph
        ├── UnknownName                    a strategy, exporter, node or module nobody knows
        ├── QueryInvalid                   a query that cannot be understood
        ├── CutImpossible                  a module that cannot be cut out of its file
        ├── SelectionInexpressible         nodes that a tool cannot be told about
        ├── TargetUnsuitable               a consumer of packages that cannot run the model
        ├── FleetInvalid                   a file of models that cannot be understood
        ├── ClusterUnusable                a cluster that cannot be reached, or went away
        └── ExtraMissing                   an optional dependency is not installed, or cannot be imported

A finding (a numeric mismatch, an unattributed node, an invalid tag) is a result and never an error; commands
report findings with exit code 1.

Words that messages of several stages have in common, and text from files made safe to show.

Names in a model come from whoever made it. A terminal obeys control characters and a spreadsheet formulas;
neither may be reached by a node name.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

# Known names in a message.
_SHOWN = 16
# How alike a proposed name is to a misspelt one, and how many characters tell that a name was begun: below, what is
# proposed is another word ("xenova" is not "genai", nor "tensorrt" "transformersjs").
_ALIKE, _TELLING = 0.65, 3


class ModelExportError(Exception):
    """What failed, with the value seen, and what to do next."""

    exit_code: ClassVar[int] = 3

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UserError(ModelExportError):
    exit_code: ClassVar[int] = 2


class ModelNotFound(UserError):
    pass


class ModelUnloadable(UserError):
    pass


class InputError(UserError):
    pass


class ExportFailed(UserError):
    pass


class RuntimeFailed(UserError):
    pass


class ToolFailed(UserError):
    pass


class FileUnreadable(UserError):
    @classmethod
    def from_os_error(cls, path: Path, error: OSError) -> FileUnreadable:
        reason = (error.strerror or str(error)).lower()
        return FileUnreadable(f"cannot read {path}: {reason}", "Check the path and its permissions.")


class FileMalformed(FileUnreadable):
    """A model with parts that cannot be read. `faults` says which, each in one line; `validate` lists them."""

    def __init__(self, message: str, hint: str = "", faults: Iterable[str] = ()) -> None:
        super().__init__(message, hint)
        self.faults = tuple(faults)


class FileUnwritable(UserError):
    pass


class ModelMismatch(UserError):
    pass


class ModelUnrepeatable(UserError):
    pass


class RecordMissing(UserError):
    pass


class RecordUnreadable(UserError):
    pass


class RecordMismatch(UserError):
    pass


class ExtraMissing(UserError):
    @classmethod
    def of_import(cls, purpose: str, package: str, error: ImportError, remedy: str) -> ExtraMissing:
        """Of a package that cannot be imported: it is not there, or it is, and its import raises something.

        of_import("running a file", "onnxruntime", error, "pip install onnxruntime")
        """
        from importlib.util import find_spec  # only needed when something is wrong

        if sys.modules.get(package) is None and find_spec(package) is None:
            return ExtraMissing(f"{purpose} needs {package}, which is not installed", remedy)
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        reason = f"{type(error).__name__}: {shorten(lines[0])}" if lines else type(error).__name__
        message = f"{purpose} needs {package}, which is installed and cannot be imported: {reason}"
        return ExtraMissing(message, f"Try `python -c 'import {package}'`; if that fails too, install it anew.")

    @classmethod
    def of_runtime(cls, error: ImportError) -> ExtraMissing:
        return cls.of_import("running a file", "onnxruntime", error, "pip install 'modelexport[runtime]'")


class SelectionInexpressible(UserError):
    pass


class TargetUnsuitable(UserError):
    pass


class FleetInvalid(UserError):
    pass


class ClusterUnusable(UserError):
    pass


class UnknownName(UserError):
    """A name that is not among the known ones; the nearest of them is proposed."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        hint = propose_name(name, (str(item) or "(model)" for item in known))
        super().__init__(f"unknown {kind} {name!r}", hint)


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Known names like a misspelt one, the likeliest first; those that begin with it come first: `Ad` is `Add`."""
    import difflib  # only needed when something is wrong, and not quick to import

    text, folded = name.casefold(), {item.casefold(): item for item in reversed([*known])}
    near = difflib.get_close_matches(text, folded, n=_SHOWN, cutoff=_ALIKE)
    begun = sorted((item for item in folded if item.startswith(text)), key=len) if len(text) >= _TELLING else []
    likely = sorted(dict.fromkeys((*near, *begun)), key=lambda item: not item.startswith(text))
    return [folded[item] for item in likely]


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The known name most like a misspelt one, empty if none is."""
    return next(iter(similar_names(name, known)), "")


def propose_name(name: str, known: Iterable[str], intro: str = "") -> str:
    """A hint: the nearest known name, or all of them if they are few; both where an `intro` of the list is given.

    propose_name("bach", ["batch", "sequence"], "It has")      "Did you mean 'batch'? It has batch, sequence."
    """
    names = [*map(str, known)]
    near = nearest_name(name, names)
    listed = f"{intro or 'Known:'} {', '.join(names[:_SHOWN])}{', …' if len(names) > _SHOWN else '.'}"
    guesses = [f"Did you mean {near!r}?"] if near else []
    return " ".join([*guesses, listed] if intro or not near else guesses)


class CutImpossible(UserError):
    """A module that cannot be cut out. `instead` are calls that can be, together."""

    def __init__(self, message: str, hint: str = "", instead: Iterable[object] = ()) -> None:
        super().__init__(message, hint)
        self.instead = tuple(map(str, instead))


class QueryInvalid(UserError):
    """A query that cannot be understood. `position` is that of the character in the way; the message points at it."""

    def __init__(self, problem: str, query: str, position: int, hint: str = "") -> None:
        super().__init__(f"{problem}\n{_pointed(query, position)}", hint)
        self.query = query
        self.position = position


def _pointed(text: str, position: int, around: int = 60) -> str:
    """The text around a character, and a caret under it."""
    # Only needed to point at a character, and not quick to import.
    import unicodedata

    before = text[max(0, position - around) : position]
    after = text[position : position + around]
    cut = "…" if position > around else ""
    head = cut + "".join(map(_visible, before))
    width = sum(2 if unicodedata.east_asian_width(character) in "WF" else 1 for character in head)
    tail = "".join(map(_visible, after)) + ("…" if len(text) > position + around else "")
    return f"  {head}{tail}\n  {' ' * width}^"


def _visible(character: str) -> str:
    return character if character.isprintable() else repr(character)[1:-1]


# What spreadsheets take for the start of a formula: https://owasp.org/www-community/attacks/CSV_Injection
_FORMULA_STARTS = ("=", "+", "-", "@")


def with_article(noun: str) -> str:
    """`an int`, `a list`: by the first letter, which is right for names of types but a few."""
    return f"{'an' if noun[:1].lower() in 'aeio' else 'a'} {noun}"


def some_of(names: Sequence[str], shown: int = 3) -> str:
    """The first of some names, and how many more there are."""
    return ", ".join(names[:shown]) + (f" and {len(names) - shown} more" if len(names) > shown else "")


def quote_argument(argument: object) -> str:
    """A path or name as a shell takes it, for commands that messages propose: `my model.onnx` is `'my model.onnx'`."""
    import shlex  # only needed when something is proposed

    return shlex.quote(str(argument))


def shorten(text: str, most: int = 200) -> str:
    """Longer text than anybody reads without its middle: `aaa… 998,000 characters …zzz`."""
    if len(text) <= most:
        return text
    end = (most - len(f"… {len(text):,} characters …")) // 2
    return f"{text[:end]}… {len(text) - 2 * end:,} characters …{text[-end:]}"


def printable(text: str) -> str:
    """The text with everything that is not a visible character written as an escape."""
    return text if text.isprintable() else "".join(map(_escape_control, text))


def printable_line(text: str, most: int) -> str:
    """Text with at most so many characters, all of them printable."""
    # Cut twice: an escape is longer than its character, and a megabyte of them would take seconds to write.
    return shorten(printable(shorten(text, most)), most)


def printable_lines(text: str, most: int) -> str:
    """Text of several lines, of which each is printable and has at most so many characters."""
    return "\n".join(printable_line(line, most) for line in text.splitlines()[:_MOST_LINES])


# A message has some lines of its own; more can only come from a name with line breaks in it.
_MOST_LINES = 20


def cell(text: str) -> str:
    """Text for a table file: printable, and never a formula."""
    shown = printable(text)
    return f"'{shown}" if shown.startswith(_FORMULA_STARTS) else shown


def _escape_control(character: str) -> str:
    if character.isprintable():
        return character
    return character.encode("unicode_escape", "backslashreplace").decode("ascii")
