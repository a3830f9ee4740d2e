"""Source metrics: the size and the shape of the package, each figure beside the limit that it is held to.

    python -m measure house
    | figure              | measured | limit       |
    | Python files        | 353      | at most 356 |

Figures are counted on syntax trees and tokens, so that text is not taken for code. `tests/test_house.py` holds
every limit.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from measure.catalogue import Options
from measure.pages import MEASURED, Table, compose_page, write_page, written_by

PACKAGE = Path(__file__).parents[1] / "src" / "modelexport"
PAGE = MEASURED / "house.md"
SMALL = 60
LONG_FUNCTION = 60

_Node = TypeVar("_Node", bound=ast.AST)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class SourceFile:
    """One file of the package."""

    path: Path
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @property
    def is_package_head(self) -> bool:
        return self.path.name == "__init__.py"

    def nodes(self, kind: type[_Node]) -> Iterator[_Node]:
        return (node for node in ast.walk(self.tree) if isinstance(node, kind))

    def docstring_lines(self) -> int:
        documented = [node for node in ast.walk(self.tree) if isinstance(node, _Documented) and ast.get_docstring(node)]
        return sum((node.body[0].end_lineno or 0) - node.body[0].lineno + 1 for node in documented)

    def comment_lines(self) -> int:
        tokens = tokenize.generate_tokens(io.StringIO(self.text).readline)
        return sum(token.type == tokenize.COMMENT for token in tokens)


@dataclass(frozen=True)
class Figure:
    """What was counted, and whether it may be so."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None

    @property
    def holds(self) -> bool:
        return (self.low is None or self.value >= self.low) and (self.high is None or self.value <= self.high)

    @property
    def limit(self) -> str:
        if self.low is None:
            return f"at most {self.high:,g}"
        return f"at least {self.low:,g}" if self.high is None else f"{self.low:,g} to {self.high:,g}"


def read_package(folder: Path = PACKAGE) -> list[SourceFile]:
    return [SourceFile(path, path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))]


def measure_house(files: list[SourceFile]) -> list[Figure]:
    """Every figure of the package, with its limit."""
    modules = [file for file in files if not file.is_package_head]
    total = sum(file.lines for file in files)
    functions = [function for file in files for function in ast.walk(file.tree) if isinstance(function, _Function)]
    rooms = {path.parts[0] for file in files if len((path := file.path.relative_to(PACKAGE)).parts) > 1}
    return [
        Figure("Python files", len(files), high=400),
        Figure("lines", total, high=80_000),
        Figure("rooms", len(rooms), high=14),
        Figure(f"files under {SMALL} lines, without `__init__`", _count(modules, lambda f: f.lines < SMALL), high=10),
        Figure("median file, without `__init__`", statistics.median(file.lines for file in modules), 180, 280),
        Figure("largest file", max(file.lines for file in files), high=420),
        Figure("file names that occur more than once", _repeated(file.path.name for file in modules), high=26),
        Figure("class names that occur more than once", _repeated(_class_names(files)), high=0),
        Figure(f"functions over {LONG_FUNCTION} lines", sum(map(_is_long, functions)), high=1),
        Figure("annotated functions, %", _share(sum(map(_is_annotated, functions)), len(functions)), low=100),
        Figure("broad excepts per 1,000 lines", round(1000 * _broad_excepts(files) / total, 2), high=0.56),
        Figure("docstrings, % of lines", _share(sum(file.docstring_lines() for file in files), total), low=14),
        Figure("comments, % of lines", _share(sum(file.comment_lines() for file in files), total), low=2.5),
    ]


def run_measure(options: Options) -> int:
    """Write the page; exit code 1 if a figure misses its limit."""
    options.pick_rows(())
    figures = measure_house(read_package())
    rows = tuple((figure.name, f"{figure.value:,g}", figure.limit) for figure in figures)
    table = Table("The package", "Files below `src/modelexport`.", ("figure", "measured", "limit"), rows)
    write_page(PAGE, compose_page("The house", written_by("house", "from the source"), [table]))
    sys.stdout.write(table.markdown())
    return 0 if all(figure.holds for figure in figures) else 1


def _count(files: list[SourceFile], is_counted: Callable[[SourceFile], bool]) -> int:
    return sum(map(is_counted, files))


def _class_names(files: list[SourceFile]) -> Iterator[str]:
    return (definition.name for file in files for definition in file.nodes(ast.ClassDef))


def _repeated(names: Iterator[str]) -> int:
    return sum(count > 1 for count in Counter(names).values())


def _is_long(function: _Function) -> bool:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1 > LONG_FUNCTION


def _is_annotated(function: _Function) -> bool:
    arguments = function.args
    given = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    return function.returns is not None and all(
        argument is None or argument.annotation is not None or argument.arg in ("self", "cls") for argument in given
    )


def _broad_excepts(files: list[SourceFile]) -> int:
    """Handlers that take whatever comes: bare, `Exception` or `BaseException`."""
    handlers = [handler for file in files for handler in file.nodes(ast.ExceptHandler)]
    return sum(
        handler.type is None or ast.unparse(handler.type) in ("Exception", "BaseException") for handler in handlers
    )


def _share(part: int, total: int) -> float:
    return int(1000 * part / total) / 10  # rounded down: a limit that is nearly reached is not reached
