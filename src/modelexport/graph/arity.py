"""Arity: nodes of standard operators have as many inputs and outputs as ONNX's schemas ask for.

    Add(x)                the Add that makes 'y' has 1 input, and the operator takes 2
    Clip(x, a, b, c)      the Clip that makes 'y' has 4 inputs, and the operator takes 1 to 3
    Pow(x, "")            the Pow that makes 'y' leaves out its input Y, which is not optional

Whoever asks what a graph does (roles, structure, cost) takes the two operands of an Add without asking first. Files of
strangers are checked once instead, when they are opened, against ONNX's schemas for the versions of operators that the
file names (https://onnx.ai/onnx/api/defs.html); a version that this onnx does not know yet by its newest one, for
nothing else would ask. ONNX Runtime's domains have ONNX's operators too, as they are now.
Operators of other domains are not judged. `onnx.checker` says more, but wants all types and weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx
import onnx.defs

from modelexport.errors import FileUnreadable
from modelexport.graph.index import MAIN, Graph, function_id
from modelexport.graph.protos import MS, NCHWC, NHWC, plain_domain

# By domain: the version of its operators that a graph uses.
_Versions = Mapping[str, int]
_REQUIRED = onnx.defs.OpSchema.FormalParameterOption.Single
# How a schema says that there is no limit.
_ANY_NUMBER = 2**31 - 1
_RUNTIME_DOMAINS = frozenset((MS, NCHWC, NHWC))
# Of ONNX's names, those that ONNX Runtime has operators with other inputs for.
_RUNTIMES_OWN = frozenset(("Attention", "Conv", "Range", "Upsample"))
# ONNX Runtime's operators that questions are asked of, with the inputs that all of its versions demand.
_FEWEST_INPUTS = {
    "BiasSplitGelu": 2,
    "DynamicQuantizeMatMul": 3,
    "EmbedLayerNormalization": 7,
    "FusedConv": 2,
    "GatherBlockQuantized": 3,
    "GroupNorm": 3,
    "MatMulBnb4": 3,
    "MatMulIntegerToFloat": 4,
    "MatMulNBits": 3,
    "NhwcFusedConv": 2,
    "QAttention": 5,
    "QGemm": 6,
    "QLinearAdd": 7,
    "QLinearMul": 7,
    "SkipGroupNorm": 4,
    "SkipLayerNormalization": 3,
    "SkipSimplifiedLayerNormalization": 3,
}
# Before this version of the format, files named no version of operators: there was one.
_FIRST_IR_WITH_OPSETS = 3


def ensure_arity(proto: onnx.ModelProto, graph: Graph, subject: str) -> None:
    """Raise FileUnreadable for a node of a standard operator with too few or too many inputs or outputs."""
    for problem in _problems(proto, graph):
        raise FileUnreadable(
            f"{subject} is not a valid ONNX graph: {problem}", "Make the file again with the tool that wrote it."
        )


@dataclass(frozen=True)
class _Operands:
    """What a schema asks of the inputs, or of the outputs, of a node: how many, and which must not be left out."""

    fewest: int
    most: int
    required: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, fewest: int, most: int, formals: Sequence[onnx.defs.OpSchema.FormalParameter]) -> _Operands:
        required = ((index, formal.name) for index, formal in enumerate(formals) if formal.option == _REQUIRED)
        return cls(fewest, most, tuple(required))

    def find_fault(self, names: Sequence[str], noun: str) -> str:
        """What is wrong, as text; empty for nothing."""
        if not self.fewest <= len(names) <= self.most:
            plural = "" if len(names) == 1 else "s"
            return f"has {len(names)} {noun}{plural}, and the operator takes {self._range}"
        left_out = (name for index, name in self.required if index < len(names) and not names[index])
        return next((f"leaves out its {noun} {name}, which is not optional" for name in left_out), "")

    @property
    def _range(self) -> str:
        if self.fewest == self.most:
            return str(self.fewest)
        return f"{self.fewest} at least" if self.most == _ANY_NUMBER else f"{self.fewest} to {self.most}"


def _problems(proto: onnx.ModelProto, graph: Graph) -> Iterator[str]:
    versions = _versions_by_graph(proto, graph)
    functions = set(map(function_id, proto.functions))
    for node in graph.nodes:
        domain = plain_domain(node.domain)
        version = versions[node.graph].get(domain, 0)
        # A function of the file decides what it takes, whatever its name is.
        schema = None if node.function in functions else _find_schema(node.op_type, version, domain)
        if schema is not None:
            inputs, outputs = schema
            fault = inputs.find_fault(node.inputs, "input") or outputs.find_fault(node.outputs, "output")
            if fault:
                name = f"that makes {node.key!r}" if any(node.outputs) else f"called {node.name!r}"
                yield f"the {node.op_type} {name} {fault}"


def _versions_by_graph(proto: onnx.ModelProto, graph: Graph) -> dict[str, _Versions]:
    """By the id of a graph: functions have versions of their own, bodies those of the graph around them."""
    # Files that name no version of ONNX's operators use them all the same: as they are now.
    assumed = 1 if proto.ir_version < _FIRST_IR_WITH_OPSETS else onnx.defs.onnx_opset_version()
    versions: dict[str, _Versions] = {MAIN: {"": assumed, **_read_versions(proto.opset_import)}}
    for function in proto.functions:
        versions[function_id(function)] = {**versions[MAIN], **_read_versions(function.opset_import)}
    # Outer bodies come before inner ones.
    for body, owner in graph.body_owner.items():
        versions[body] = versions[graph.by_key[owner].graph]
    return versions


def _read_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> _Versions:
    # Versions begin with 1: any other number says as little as none.
    return {plain_domain(opset.domain): opset.version for opset in imports if opset.version > 0}


@lru_cache(maxsize=4096)
def _find_schema(op_type: str, version: int, domain: str) -> tuple[_Operands, _Operands] | None:
    """Of inputs and of outputs; None for an operator that ONNX does not know, or not in this version yet."""
    newest = onnx.defs.onnx_opset_version()
    if op_type in _FEWEST_INPUTS and (not domain or domain in _RUNTIME_DOMAINS):
        return _Operands(_FEWEST_INPUTS[op_type], _ANY_NUMBER, ()), _Operands(1, _ANY_NUMBER, ())
    if domain in _RUNTIME_DOMAINS:
        if op_type in _RUNTIMES_OWN:
            return None
        version, domain = newest, ""
    if not onnx.defs.has(op_type, domain):
        return None
    try:
        schema = onnx.defs.get_schema(op_type, min(version, newest), domain)
    except onnx.defs.SchemaError:
        return None
    inputs = _Operands.of(schema.min_input, schema.max_input, schema.inputs)
    return inputs, _Operands.of(schema.min_output, schema.max_output, schema.outputs)
