"""Results of the verbs that write files: export, relink, quantize, fold, flatten, extract.

Each names the files that were written, has the record as it is in them, and says what a user should know (`notes`). A
result that is not `ok` is a finding and no error: the command ends with exit code 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Generic, TypeVar

from modelexport.record.lineage import Lineage
from modelexport.record.package import PackageInfo
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.record.results.verification import Difference, Verification
from modelexport.record.signals import OutputCheck

# Elements of an extracted file and of the PyTorch module may differ by this much.
TOLERANCE = 1e-4


@dataclass(frozen=True)
class End:
    """An input or output. Axes are sizes or names, empty where nothing is known; `value` is that of the whole file."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    value: str


class Feed(StrEnum):
    """Where the tensor came from that an input was fed.

    GIVEN  the PyTorch module was given it
    RUN    the PyTorch model computed it; the module has it from somewhere else than its arguments
    FILE   the whole file computed it: PyTorch never had it in this form
    """

    GIVEN = "given"
    RUN = "run"
    FILE = "file"


@dataclass(frozen=True)
class OutputComparison:
    """One output of an extracted file, compared with where it should come from: `returned` by the PyTorch module,
    computed somewhere in the `run` of the model, or in the whole `file`. `reordered`: the axes are in another order."""

    name: str
    against: str
    difference: Difference
    reordered: bool = False


@dataclass(frozen=True)
class ExtractionCheck:
    """
    fed       by input: where its tensor came from
    missing   how many tensors the module returned that the file does not
    lost      how many of those the whole file makes, outside of what was cut out: it ends too early
    whole     whole modules were cut out, and not nodes of some
    chosen    somebody chose the tolerance: it is absolute and relative, and relative alone if not
    runs      the model makes one of the calls on these inputs; there is nothing to compare with if not
    """

    reference: str
    tolerance: float
    fed: Mapping[str, Feed]
    outputs: tuple[OutputComparison, ...]
    missing: int = 0
    lost: int = 0
    whole: bool = True
    chosen: bool = False
    runs: bool = True

    @property
    def ok(self) -> bool:
        """Whether something was compared with what the module returned, all that was compared agrees, and nothing that
        others get from the module is missing. What nodes make may be nowhere but in the whole file."""
        compared = any(output.against == RETURNED or not self.whole for output in self.outputs)
        return compared and not self.lost and all(output.difference.agrees for output in self.outputs)

    @property
    def max_abs(self) -> float:
        return max((output.difference.max_abs for output in self.outputs), default=0.0)


RETURNED = "returned"


@dataclass(frozen=True)
class Extraction:
    """
    asked    modules or queries, as they were asked for
    modules  the module calls that are in it
    along    nodes that belong to others: constants, shape arithmetic, what lies in between
    weights  bytes of its initializers
    check    None if it was not held against the model
    shared   nodes that also do the work of modules outside of it
    """

    source: str
    path: Path
    files: tuple[Path, ...]
    asked: tuple[str, ...]
    modules: tuple[str, ...]
    class_name: str
    provenance: Provenance
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    along: int
    weights: int
    notes: tuple[str, ...] = ()
    check: ExtractionCheck | None = None
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    shared: int = 0

    @property
    def ok(self) -> bool:
        return self.check is None or self.check.ok


@dataclass(frozen=True, slots=True)
class FoldedFunction:
    """A function that modules became; `nodes` are those of its body, calls of other functions included."""

    name: str
    class_name: str
    calls: int
    nodes: int
    modules: tuple[str, ...]


# Why a module does not become a call of a function.
INTERLEAVED = "its nodes and those of other modules need each other's results"
UNREAD = "nothing reads its results"
ALONE = "it is called once"
SMALL = "it is a single node"


@dataclass(frozen=True, slots=True)
class Unfolded:
    """Calls of modules of one class that did not become calls of a function, and why."""

    class_name: str
    calls: int
    reason: str

    @property
    def is_usual(self) -> bool:
        """Whether there was nothing to gain; else it repeats, and could not be folded."""
        return self.reason in (ALONE, SMALL)


@dataclass(frozen=True)
class Folding:
    """
    before    nodes of the file before, those in bodies and functions included
    after     the same afterwards: every function counts once
    outside   by class: nodes of folded modules that could not become part of the call
    note      what is wrong with the file that was folded, or with folding it
    """

    before: int
    after: int
    functions: tuple[FoldedFunction, ...] = ()
    unfolded: tuple[Unfolded, ...] = ()
    outside: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def share(self) -> float:
        """Nodes after for each node before."""
        return self.after / self.before if self.before else 1.0


@dataclass(frozen=True)
class Flattening:
    """
    exact    whether the graph is the one that was folded, bit by bit
    inlined  names of the functions that were put in the place of their calls
    kept     names of functions that were left, and why
    note     why it is not the one that was folded, where that is so
    """

    before: int
    after: int
    exact: bool
    inlined: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unmet:
    """A request that was not done as it was asked for: `--opset 3`, and `the file has opset 18`."""

    asked: str
    done: str


@dataclass(frozen=True)
class ExportResult:
    """What an export gave; `seconds` is how long each step took, `unmet` what the file is not that was asked for."""

    path: Path
    files: tuple[Path, ...]
    provenance: Provenance
    check: OutputCheck | None = None
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)
    unmet: tuple[Unmet, ...] = ()

    @property
    def strategy(self) -> str:
        """The strategy that attributed the nodes: another one than asked for where that could not judge this model."""
        return self.provenance.origin.strategy


@dataclass(frozen=True)
class PackageExport:
    """A package that was written: what it consists of, and the export of each component."""

    folder: Path
    info: PackageInfo
    components: Mapping[str, ExportResult]


@dataclass(frozen=True)
class RelinkResult:
    """
    after      the file that was looked at, or that the tool's result was to be written to
    path       the tagged file; None if nothing was written
    before     what it was traced back to: a path, or the record inside the file
    related    whether it comes from there at all; if not, nothing was written
    differing  weights of the same name that do not hold the same numbers
    idle       tools that were run and changed nothing, as they were asked for
    unmet      what was asked of a tool, and is not so in the file
    notes      what to know about where modules are known from
    """

    path: Path | None
    files: tuple[Path, ...]
    before: str
    provenance: Provenance
    lineage: Lineage
    related: bool
    differing: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)
    after: str = ""
    unmet: tuple[Unmet, ...] = ()

    @property
    def ok(self) -> bool:
        return self.related and not self.differing and not self.unmet

    def moved_to(self, path: Path, *beside: Path) -> RelinkResult:
        """The same of a file that was moved; `beside` are its weights and its record."""
        return replace(self, path=path, files=(path, *beside), after=str(path))


@dataclass(frozen=True)
class QuantizeResult:
    """
    relinked  the file that was written, with its record
    excluded  the nodes that were left in float because that was asked for
    included  the nodes that alone were to be quantized; None if that was not asked for
    report    what each module lost, if that was asked for
    """

    relinked: RelinkResult
    excluded: tuple[NodeEntry, ...]
    included: tuple[NodeEntry, ...] | None = None
    notes: tuple[str, ...] = ()
    report: Verification | None = None

    @property
    def path(self) -> Path | None:
        return self.relinked.path

    @property
    def ok(self) -> bool:
        return self.relinked.ok

    @property
    def unmet(self) -> tuple[Unmet, ...]:
        return self.relinked.unmet

    def moved_to(self, path: Path, *beside: Path) -> QuantizeResult:
        return replace(self, relinked=self.relinked.moved_to(path, *beside))


_Made = TypeVar("_Made", RelinkResult, QuantizeResult)


@dataclass(frozen=True)
class PackageChange(Generic[_Made]):
    """What was made of the components of a package.

    folder      of the new package; None if nothing was written
    components  by name: the file, its lineage and its record
    copied      components that were taken over as they are
    """

    folder: Path | None
    components: Mapping[str, _Made]
    copied: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return all(made.ok for made in self.components.values())


@dataclass(frozen=True)
class ToolInfo:
    """A tool of `run-tool`.

    call   how it is called, with its options: `ort:all|extended|basic`
    makes  operators of ONNX Runtime's that it has fusions for
    extra  the part of modelexport's own dependencies that brings its package
    """

    call: str
    does: str
    makes: tuple[str, ...]
    package: str
    extra: str
    installed: bool


@dataclass(frozen=True)
class FillResult:
    """
    path    the file with its weights, and `files` all that were written
    filled  how many initializers got their numbers, and how many bytes those are
    made    how many of them are other than in the checkpoint: cast, transposed, joined
    record  the record as it is in the file; None if there is none
    """

    path: Path
    files: tuple[Path, ...]
    filled: int
    nbytes: int
    made: int
    provenance: Provenance | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FoldResult:
    """The files that were written, the record as it is in them, and what became of the modules."""

    path: Path
    files: tuple[Path, ...]
    provenance: Provenance
    folding: Folding
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class FlattenResult:
    """The files that were written, the record as it is in them (None if there is none), and how it was done."""

    path: Path
    files: tuple[Path, ...]
    provenance: Provenance | None
    flattening: Flattening
    notes: tuple[str, ...] = ()
