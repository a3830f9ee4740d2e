"""Contents: digests of models, and the key that says whether a step was done before.

    key = step_key(row, step, content, before, versions)        "9f2c…"

Two steps with the same key write the same: same bytes of the model, same options, same versions of the tools, same
steps before them. What is a path in an option counts by what is there; where the results go does not count.

Reading every model for every run would take hours for large fleets. So the digest of a file is kept with its size, its
time and its number in the file system, and the file is read again if one of them is another. A file that was changed
while it was read, or a moment before, is not kept: times of file systems are too coarse to tell
(https://git-scm.com/docs/racy-git).
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import metadata
from itertools import takewhile
from pathlib import Path

from modelexport.fleet.fleet_plan import Option, Row, Step
from modelexport.fleet.verbs import READ_FILES, is_reference
from modelexport.graph.file.atomic import write_atomically
from modelexport.record.json_reading import read_json_object
from modelexport.record.regular_files import open_regular

# Raised when the meaning of a key changes, so that nothing is taken for what it is not.
_FORMAT = 1
_CHUNK = 1 << 20
# Nanoseconds that a file must have been left alone before its digest is kept.
_SETTLED = 2_000_000_000
_TOOLS = ("torch", "transformers", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy", "safetensors", "plotly")
_Entry = tuple[int, int, int, str]


class ContentDigests:
    """Digests of files and folders, each looked at once in a run and read once in its life."""

    def __init__(self, cache_file: Path) -> None:
        self._cache_file = cache_file
        self._kept: dict[str, _Entry] = dict(_read_cache(cache_file))
        self._seen: dict[str, str] = {}
        self._listed: dict[Path, list[str]] = {}
        self._changed = False

    def of(self, path: str) -> str:
        """Of a file with what lies beside it, or of a folder; the path itself where there is nothing."""
        if path not in self._seen:
            self._seen[path] = self._digest(Path(path))
        return self._seen[path]

    def of_row(self, row: Row) -> str:
        """Of all that its model comes from."""
        return _digest_json([self._of_source(row), self.of(row.file) if row.file else ""])

    def _of_source(self, row: Row) -> str:
        """A hub id is known by its name: what is behind it is only known to the machine that loads it."""
        if ":" in row.source and not Path(row.source).exists():
            module = row.source.rpartition(":")[0]
            files = [Path(module)] if module.endswith(".py") else _module_files(module, row.code)
            return _digest_json([row.source.rpartition(":")[2], *(self.of(str(file)) for file in files)])
        return self.of(row.source) if row.source else ""

    def of_options(self, options: Mapping[str, Option]) -> dict[str, object]:
        """Options, with the content of files in the place of their names."""
        return {name: self._of_option(name, value) for name, value in sorted(options.items())}

    def _of_option(self, name: str, value: Option) -> object:
        if isinstance(value, tuple):
            return [self._of_option(name, item) for item in value]
        is_path = name in READ_FILES and isinstance(value, str) and not is_reference(value)
        return self.of(str(value)) if is_path else value

    def save(self) -> None:
        if self._changed:
            write_atomically(self._cache_file, json.dumps(self._kept))
            self._changed = False

    def _digest(self, path: Path) -> str:
        try:
            if not path.is_dir():
                return _digest_json([(file.name, self._of_file(file)) for file in self._with_companions(path)])
            return _digest_json([(name, self._of_file(path / name)) for name in sorted(_files_below(path))])
        except (OSError, ValueError) as error:
            # Whoever runs the step says what is wrong; two machines that lack it are alike.
            return f"{path}: {type(error).__name__}"

    def _with_companions(self, path: Path) -> list[Path]:
        """A file and those that begin with its name: `model.onnx`, `model.onnx.data`, `model.onnx_data`."""
        if path.suffix != ".onnx":
            return [path]
        # A folder is listed once: thousands of rows may have their files in the same one.
        if path.parent not in self._listed:
            self._listed[path.parent] = sorted(entry.name for entry in os.scandir(path.parent) if entry.is_file())
        names = self._listed[path.parent]
        beside = takewhile(lambda name: name.startswith(path.name), names[bisect_left(names, path.name) :])
        return [path, *(path.parent / name for name in beside if name != path.name)]

    def _of_file(self, path: Path) -> str:
        status = path.stat()
        identity = (status.st_size, status.st_mtime_ns, status.st_ino)
        kept = self._kept.get(str(path))
        if kept is not None and tuple(kept[:3]) == identity:
            return kept[3]
        digest = hashlib.sha256()
        with open_regular(path) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            after = os.fstat(file.fileno())
        if after.st_mtime_ns == status.st_mtime_ns < time.time_ns() - _SETTLED:
            self._kept[str(path)] = (*identity, digest.hexdigest())
            self._changed = True
        return digest.hexdigest()


def step_key(
    row: Row, step: Step, digests: ContentDigests, before: Mapping[str, str], versions: Mapping[str, str]
) -> str:
    """before  keys of the steps whose files and reports it uses"""
    return _digest_json(
        {
            "format": _FORMAT,
            "model": digests.of_row(row),
            "task": row.task,
            "exporter": row.exporter,
            "package": row.package,
            "load": digests.of_options(row.load),
            "verb": step.verb,
            "program": [step.module, *step.words],
            "options": digests.of_options(step.options),
            "environment": dict(sorted(row.environment.items())),
            "before": dict(sorted(before.items())),
            "versions": dict(versions),
        }
    )


@cache
def installed_versions() -> Mapping[str, str]:
    """Of all that decides what comes out, this package itself by its source: a fix makes another program of it."""
    versions = {"python": ".".join(map(str, sys.version_info[:3])), "modelexport": _own_digest()}
    # By their metadata: importing them takes seconds, and here nothing is run.
    for tool in _TOOLS:
        try:
            versions[tool] = metadata.version(tool)
        except metadata.PackageNotFoundError:
            continue
    return versions


def _own_digest() -> str:
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _digest_json(content: object) -> str:
    text = json.dumps(content, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _files_below(folder: Path) -> Iterator[str]:
    """Names of all files in a folder, hidden folders such as `.git` left out; links to files are files."""
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name != "__pycache__"]
        for name in names:
            path = Path(parent, name)
            if stat.S_ISREG(path.stat().st_mode):
                yield path.relative_to(folder).as_posix()


def _module_files(module: str, code: str) -> list[Path]:
    """Where Python would find a module, without importing what is around it."""
    steps = module.split(".")
    for entry in filter(None, [code, *sys.path]):
        whole = Path(entry, *steps)
        # A package that is imported around it may change it; it is a part of what is remembered by its own file alone.
        for path in (whole.with_suffix(".py"), whole / "__init__.py"):
            if path.is_file():
                return [path]
    return []


def _read_cache(path: Path) -> Iterator[tuple[str, _Entry]]:
    """What is damaged in it is left out: it is read again from the models."""
    for name, entry in read_json_object(path).items():
        match entry:
            case [int(size), int(time_ns), int(inode), str(digest)]:
                yield name, (size, time_ns, inode, digest)
