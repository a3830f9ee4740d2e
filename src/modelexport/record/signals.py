"""Signals: what was seen while a model ran and was exported. `capture` records them, strategies judge by them.

ExporterScopes   what the exporter wrote on nodes                          exact where nothing was optimized
Trace, FX        every operator of a run, with fingerprints of its values  says which call issued a value
GraphValues      fingerprints of the values of the ONNX graph              joins the graph to the trace
EagerRun         who issued which value, what each module got and gave     for `verify` alone (decision 0009)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.hierarchy import ModuleCall


@dataclass(frozen=True)
class ExporterScopes:
    """What an exporter knows about its own graph, beside what it wrote into it.

    fx_calls  FX node names of the exported program, mapped to the module call that issued them. The ONNX metadata
              that dynamo writes keeps the module's path but drops the call's number; the exported program has both.
    parts     module paths, mapped to the part of a scope by which TorchScript's own module map names them; empty
              where this version of torch has no such map
    """

    fx_calls: Mapping[str, ModuleCall] = field(default_factory=dict)
    parts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a tensor holds, in a few numbers. Made by `graph.fingerprint`, for torch and ONNX Runtime alike.

    kind     `float`, `int` or `bool`: exporters change the width of a type, never its kind
    sketch   of floats: projections that two runs of the same arithmetic give nearly alike
    spread   the length that differences between sketches are measured by
    digest   of integers and bools: equal for equal content
    distinctive  whether equal content is a reason to believe in a common origin; masks, ranges and constants are not
    """

    shape: tuple[int, ...]
    kind: str
    sketch: tuple[float, ...] = ()
    spread: float = 0.0
    digest: bytes = b""
    distinctive: bool = False


@dataclass(frozen=True, slots=True)
class TracedOp:
    """One operator of a run, `aten::addmm` say, and the module call that issued it. Values are known by number.

    function  the operator that a program calls and torch breaks down, `aten::linear`; exporters know it by that name
    """

    name: str
    call: ModuleCall
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    function: str = ""


@dataclass(frozen=True)
class Trace:
    """All operators of one run in their order, with fingerprints of what they made: never the tensors themselves.

    source     who recorded it: `hooks`, `torch.export` or `torch.fx`
    values     fingerprints, by number of the value
    inputs     the model's inputs by the name that the ONNX graph gives them
    tensors    parameters and buffers by their full name
    operators  names of operators, mapped to the ONNX operators that exporters can make of them
    """

    source: str
    ops: tuple[TracedOp, ...]
    values: tuple[Fingerprint, ...]
    inputs: Mapping[str, int]
    tensors: Mapping[str, int]
    operators: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Successive rows of a parameter, as an initializer holds them: `q_proj.weight`, rows 0 to 63.

    transposed  the rows are the parameter's columns
    """

    parameter: str
    first: int
    rows: int
    transposed: bool = False


@dataclass(frozen=True)
class GraphValues:
    """What the values of an ONNX graph hold in one run of it: inputs, initializers and everything computed.

    failure  why ONNX Runtime did not run the graph, or not all of it; initializers are there all the same
    parts    of initializers that hold several parameters, or a part of one; also where they are quantized
    inside   of values in bodies and functions: what they hold each time that these run
    """

    prints: Mapping[str, Fingerprint]
    failure: str = ""
    parts: Mapping[str, tuple[WeightPart, ...]] = field(default_factory=dict)
    inside: Mapping[str, tuple[Fingerprint, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Signals:
    """Everything that strategies may judge by, beside the graph and the hierarchy.

    fx             the model as torch.export or torch.fx saw it, with its values
    trace_failure  why there is no trace, though it was asked for
    """

    scopes: ExporterScopes = ExporterScopes()
    trace: Trace | None = None
    values: GraphValues | None = None
    fx: Trace | None = None
    fx_failure: str = ""
    trace_failure: str = ""


@dataclass(frozen=True, slots=True)
class IssuedOp:
    """One operator that torch computed, and the module call that was open. Values are known by number.

    view  it only looks at the memory of what it reads in another way
    """

    name: str
    call: ModuleCall
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    view: bool = False


@dataclass(frozen=True, slots=True)
class CallTensors:
    """What one module call was given and what it returned, by number."""

    call: ModuleCall
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class EagerRun:
    """
    calls     in the order in which they end
    inputs    of the model, by the name that the ONNX graph gives them
    computed  values that depend on what the model was given
    given     values that are what the model was given, or look at it in another way
    hooked    paths of modules that somebody attached hooks to: what these do is done around a call, not inside of it
    """

    ops: tuple[IssuedOp, ...]
    calls: tuple[CallTensors, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    computed: frozenset[int]
    given: frozenset[int] = frozenset()
    hooked: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """One run of the written file, compared with PyTorch. `message` says what is wrong where `ok` is False.

    too_small  outputs that differ, and are no larger than rounding errors of what they are computed from
    nothing_finite  outputs that are NaN or infinite everywhere, in PyTorch and in the file: they were not compared
    """

    ok: bool
    max_abs_diff: float
    max_rel_diff: float
    message: str = ""
    too_small: tuple[str, ...] = ()
    nothing_finite: tuple[str, ...] = ()
