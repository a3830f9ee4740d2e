"""A file that is opened once, for everything that is asked about it.

What the code runs in: installed tools, and a clock for its steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib import metadata
from pathlib import Path

from modelexport.errors import ExtraMissing, FileUnreadable
from modelexport.graph.file.metadata import name_nodes, read_record
from modelexport.graph.file.reading import ModelFile, open_model
from modelexport.graph.index import Graph, edges_of
from modelexport.inspect.analyze import Subject
from modelexport.inspect.records import fit, read_best
from modelexport.record.provenance import Provenance

SIDECAR = ".json"


@dataclass(frozen=True, eq=False)
class OpenedFile:
    """A file whose graph is indexed and whose record is unpacked when they are first needed, and never again."""

    path: Path
    file: ModelFile

    @property
    def graph(self) -> Graph:
        return self.file.graph

    @cached_property
    def record(self) -> Provenance:
        """As it is stored: the graph may have been changed since."""
        return read_best(self.file, self.path)

    @property
    def provenance(self) -> Provenance:
        """The fitted record, with what the nodes make and read."""
        return replace(self.subject.provenance, edges=edges_of(self.graph))

    @property
    def is_up_to_date(self) -> bool:
        """Whether the record was made for this very graph."""
        return self.record.origin.graph == self.graph.fingerprint

    @cached_property
    def subject(self) -> Subject:
        """With the record for exactly the nodes that there are."""
        beside = read_record(self.file.proto) is None
        fitted = fit(self.record, self.graph, self.path, beside=beside)
        return Subject(self.path, self.file.proto, self.graph, fitted)


def open_file(path: Path) -> OpenedFile:
    return OpenedFile(path, open_model(path))


def with_names(opened: OpenedFile, refuses: Callable[[str], str]) -> tuple[OpenedFile, int]:
    """The same file with names for nodes that have none of their own or one that is refused, and how many those are."""
    attributions = {key: entry.attribution for key, entry in opened.subject.provenance.nodes.items()}
    changed = name_nodes(opened.file.proto, attributions, refuses)
    return OpenedFile(opened.path, replace(opened.file)), len(changed)


def model_path(path: Path) -> Path:
    """Raise FileUnreadable for a record, which some verbs take in the place of its model and others do not."""
    if path.suffix == SIDECAR:
        raise FileUnreadable(f"{path} is a hierarchy record, not a model", "Give the .onnx file beside it.")
    return path


Progress = Callable[[str], None]

_TOOLS = ("modelexport", "torch", "transformers", "onnx", "onnx-ir", "onnxscript")


class Clock:
    """Tells which step is running and remembers how long each one took."""

    def __init__(self, progress: Progress | None) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        if self._progress is not None:
            self._progress(name)
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def need_torch(purpose: str) -> None:
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ExtraMissing(
            f"{purpose} needs torch, which is not installed", "Install it with: pip install 'modelexport[export]'"
        ) from error


@cache
def tool_versions() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in _TOOLS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
