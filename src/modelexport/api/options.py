"""Options: the values of keywords and command-line options, and the words that users choose from.

A word is turned into its value once, at the public function: `parse_embedding("lean", …)` gives `EmbedOptions`. An
unknown word raises UnknownName with the nearest known one ("Did you mean 'dynamo'?").
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

import onnx

from modelexport.errors import UnknownName, UserError, shorten, with_article
from modelexport.graph.file.metadata import EmbedOptions, Level, Names
from modelexport.record.model_source import ModelSource
from modelexport.record.results.verification import Tolerance
from modelexport.record.tags import TORCH_NN_EXCEPTIONS, Scope, TagPolicy, TorchNN

# As in capture/fx, which imports torch and so cannot be asked here.
FxKind = Literal["torch_export", "symbolic_trace"]


@dataclass(frozen=True)
class ExportOptions:
    """Everything about an export but the model and its inputs.

    dtype          of the weights, as it was asked for; the model that is exported has it already
    weights        False: only their names, types, shapes, and where they are to come from
    optimize       whether torch's optimizer runs on the graph
    external_data  None: a file of their own for weights of more than 1 GB
    shard_size     bytes that each file of weights is to have at most
    fx_graph       the kinds of FX graph that are written, and that the strategy fx_graph uses
    jit_graph      where the TorchScript graph is written

    Whatever can be wrong with them is said here, before the model is loaded, which may take minutes.
    """

    exporter: str = "dynamo"
    strategy: str = "enhanced_semantic"
    opset: int | None = None
    dtype: str | None = None
    weights: bool = True
    optimize: bool = True
    static: bool = False
    dynamic: bool = False
    external_data: bool | None = None
    shard_size: int | None = None
    policy: TagPolicy = TagPolicy()
    embed: EmbedOptions = EmbedOptions()
    check: bool = True
    tolerance: Tolerance = field(default_factory=Tolerance)
    verbose: bool = False
    fx_graph: tuple[FxKind, ...] = ()
    jit_graph: Path | None = None

    def __post_init__(self) -> None:
        newest = onnx.defs.onnx_opset_version()
        if self.opset is not None and not 1 <= self.opset <= newest:
            raise UserError(f"there is no opset {self.opset}", f"This version of onnx knows opsets 1 to {newest}.")
        if self.static and self.dynamic:
            raise UserError("--static and --dynamic exclude each other", "Choose one of them.")
        if self.shard_size is not None and self.external_data is False:
            raise UserError(
                "--no-external-data puts weights into the model, and --shard-size into files beside it",
                "Choose one of them.",
            )
        if not self.weights:
            self._ensure_possible_without_weights()

    def _ensure_possible_without_weights(self) -> None:
        if self.exporter == "torchscript":
            raise UserError("--no-weights: TorchScript traces with numbers", "Use --exporter dynamo.")
        if self.external_data is not None or self.shard_size is not None:
            raise UserError("--no-weights: there are no weights to put anywhere", "Leave --external-data to `fill`.")
        if self.jit_graph is not None or self.fx_graph:
            raise UserError("--no-weights: --jit-graph and --fx-graph run the model", "Leave them out.")


@dataclass(frozen=True)
class VerifyOptions:
    """A model or its inputs alone, how often to run, and how far numbers may be apart.

    as_deployed  judge the graph that ONNX Runtime makes of the file
    proof        also prove attributions by values; needs a run that keeps every one of them
    branches     also search for inputs that take another path through the model
    memory       bytes that the program is to take at most; then model and file run in pieces
    """

    source: ModelSource
    samples: int = 1
    tolerance: Tolerance = field(default_factory=Tolerance)
    as_deployed: bool = False
    proof: bool = True
    branches: bool = True
    memory: int | None = None

    def __post_init__(self) -> None:
        if self.memory is not None and self.as_deployed:
            raise UserError(
                "--as-deployed has ONNX Runtime optimize the whole file at once, whatever --memory is",
                "Leave one of them out.",
            )

    @property
    def runs_often(self) -> bool:
        """Whether sessions are worth keeping: building one takes longer than a run, but each holds its weights."""
        return max(self.samples, len(self.source.samples)) > 1


# Steps that a package is verified on.
NEW_TOKENS = 16


@dataclass(frozen=True)
class ChainOptions:
    """What `verify` does with a package besides looking at its files.

    new_tokens  steps of the chain
    grid        whether steps of other sizes are looked at
    alone       whether each file is verified by itself first
    """

    new_tokens: int = NEW_TOKENS
    grid: bool = True
    alone: bool = True

    def __post_init__(self) -> None:
        if self.new_tokens < 1:
            raise UserError(f"new tokens are {self.new_tokens}", "Give 1 or more.")


EXPORTERS = ("dynamo", "transformers", "torchscript")
FX_GRAPHS: tuple[FxKind, ...] = ("torch_export", "symbolic_trace")
_BOTH = "both"
_Item = TypeVar("_Item", str, str | Path)


def ensure_known(kind: str, name: str, names: Sequence[str]) -> str:
    """The name itself, so that it can be checked where it is passed on; `kind` is what the error calls it."""
    if name not in names:
        raise UnknownName(kind, name, names)
    return name


def as_sequence(given: _Item | Sequence[_Item], name: str) -> Sequence[_Item]:
    """One is as good as a list of one: `op_types="MatMul"` is not five letters.

    name  of the keyword
    """
    if isinstance(given, str | Path):
        return (given,)
    # In Python anything can be given, and what comes later would fail at it without a word about the keyword.
    anything: object = given
    items = anything if isinstance(anything, Collection) else [anything]
    if strange := [item for item in items if not isinstance(item, str | Path)]:
        raise UserError(
            f"{name} holds {shorten(repr(strange[0]))}, {with_article(type(strange[0]).__name__)}",
            "Give text (or a path), or a list of it.",
        )
    return given


def parse_tolerance(atol: float | None, rtol: float | None, min_sqnr: float | None = None) -> Tolerance:
    """What was asked for; what is None follows the types of the numbers (`graph/difference.py`)."""
    tolerances = {name: bound for name, bound in (("atol", atol), ("rtol", rtol)) if bound is not None}
    for name, bound in tolerances.items():
        if not bound >= 0:  # not `bound < 0`: NaN is no tolerance either, and compares false with everything
            raise UserError(f"{name} is {bound:g}, which is no tolerance", "Give a number from 0 on.")
    if min_sqnr is not None and math.isnan(min_sqnr):
        raise UserError("min_sqnr is nan, which is no number of decibels", "Give a number, such as 30.")
    if min_sqnr is not None and tolerances:
        raise UserError(
            f"min_sqnr decides in place of tolerances, and {' and '.join(tolerances)} would mean nothing",
            "Give decibels or tolerances, and not both.",
        )
    return Tolerance(atol, rtol, min_sqnr)


def parse_tag_policy(
    scope: str, torch_nn: str, torch_nn_exception: Sequence[str], keep: Sequence[str], drop: Sequence[str]
) -> TagPolicy:
    # Words are checked here, because TorchNN("exeptions") would raise a ValueError without a suggestion.
    return TagPolicy(
        Scope.HF if ensure_known("tag policy", scope, ("default", "hf")) == "hf" else Scope.ANY,
        TorchNN(ensure_known("value for torch_nn", torch_nn, list(TorchNN))),
        tuple(torch_nn_exception) or TORCH_NN_EXCEPTIONS,
        tuple(keep),
        tuple(drop),
    )


def parse_embedding(level: str, names: str, strip_exporter_metadata: bool) -> EmbedOptions:
    """How much of the record goes into the file (none, lean, full), and under which names its nodes go."""
    return EmbedOptions(
        Level(ensure_known("embed level", level, list(Level))),
        Names(ensure_known("kind of names", names, list(Names))),
        strip_exporter_metadata,
    )


def parse_fx_graphs(name: str | None) -> tuple[FxKind, ...]:
    if name is None:
        return ()
    wanted = ensure_known("kind of FX graph", name, (*FX_GRAPHS, _BOTH))
    return tuple(kind for kind in FX_GRAPHS if wanted in (kind, _BOTH))
