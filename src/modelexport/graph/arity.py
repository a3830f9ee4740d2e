"""Arity: nodes of standard operators have the inputs and outputs without which they mean nothing.

    Add(x)                the Add that makes 'y' has 1 input, and the operator takes 2 at least
    Pow(x, "")            the Pow that makes 'y' leaves out its input Y, which is not optional

Whoever asks what a graph does (roles, structure, cost) reads the second operand of an Add without asking first. Files
of strangers are checked once instead, when they are opened, against ONNX's schemas for the versions of operators that
the file names (https://onnx.ai/onnx/api/defs.html). Operators of other domains have no schema here, and inputs too many
do no harm: neither is judged. `onnx.checker` says more, but wants all types and weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import onnx
import onnx.defs

from modelexport.errors import FileUnreadable
from modelexport.graph.index import MAIN, Graph, function_id
from modelexport.graph.protos import plain_domain

# By domain: the version of its operators that a graph uses.
_Versions = Mapping[str, int]
_REQUIRED = onnx.defs.OpSchema.FormalParameterOption.Single
# Before this version of the format, files named no version of operators: there was one.
_FIRST_IR_WITH_OPSETS = 3


def ensure_arity(proto: onnx.ModelProto, graph: Graph, subject: str) -> None:
    """Raise FileUnreadable for a node of a standard operator with too few inputs or outputs."""
    for problem in _problems(proto, graph):
        raise FileUnreadable(
            f"{subject} is not a valid ONNX graph: {problem}", "Make the file again with the tool that wrote it."
        )


@dataclass(frozen=True)
class _Operands:
    """What a schema asks of the inputs, or of the outputs, of a node: how many, and which must not be left out."""

    fewest: int
    required: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, fewest: int, formals: Sequence[onnx.defs.OpSchema.FormalParameter]) -> _Operands:
        required = ((index, formal.name) for index, formal in enumerate(formals) if formal.option == _REQUIRED)
        return cls(fewest, tuple(required))

    def find_lack(self, names: Sequence[str], noun: str) -> str:
        """What is missing, as text; empty for nothing."""
        if len(names) < self.fewest:
            count = f"{len(names)} {noun}" if len(names) == 1 else f"{len(names)} {noun}s"
            return f"has {count}, and the operator takes {self.fewest} at least"
        left_out = (name for index, name in self.required if index < len(names) and not names[index])
        return next((f"leaves out its {noun} {name}, which is not optional" for name in left_out), "")


def _problems(proto: onnx.ModelProto, graph: Graph) -> Iterator[str]:
    versions = _versions_by_graph(proto, graph)
    functions = set(map(function_id, proto.functions))
    for node in graph.nodes:
        domain = plain_domain(node.domain)
        version = versions[node.graph].get(domain)
        # A function of the file decides what it takes, whatever its name is.
        schema = _find_schema(node.op_type, version, domain) if version and node.function not in functions else None
        if schema is not None:
            inputs, outputs = schema
            lack = inputs.find_lack(node.inputs, "input") or outputs.find_lack(node.outputs, "output")
            if lack:
                name = f"that makes {node.key!r}" if any(node.outputs) else f"called {node.name!r}"
                yield f"the {node.op_type} {name} {lack}"


def _versions_by_graph(proto: onnx.ModelProto, graph: Graph) -> dict[str, _Versions]:
    """By the id of a graph: functions have versions of their own, bodies those of the graph around them."""
    # Nothing is known of a domain that is not named, but ONNX's own is used all the same: as it is now.
    assumed = 1 if proto.ir_version < _FIRST_IR_WITH_OPSETS else onnx.defs.onnx_opset_version()
    versions: dict[str, _Versions] = {MAIN: {"": assumed, **_read_versions(proto.opset_import)}}
    for function in proto.functions:
        versions[function_id(function)] = {**versions[MAIN], **_read_versions(function.opset_import)}
    # Outer bodies come before inner ones.
    for body, owner in graph.body_owner.items():
        versions[body] = versions[graph.by_key[owner].graph]
    return versions


def _read_versions(imports: Iterable[onnx.OperatorSetIdProto]) -> _Versions:
    return {plain_domain(opset.domain): opset.version for opset in imports}


@lru_cache(maxsize=4096)
def _find_schema(op_type: str, version: int, domain: str) -> tuple[_Operands, _Operands] | None:
    """Of inputs and of outputs; None for an operator that ONNX does not know, or not in this version yet."""
    newest = onnx.defs.onnx_opset_version()
    if (not domain and version > newest) or not onnx.defs.has(op_type, domain):
        return None
    try:
        schema = onnx.defs.get_schema(op_type, min(version, newest), domain)
    except onnx.defs.SchemaError:
        return None
    return _Operands.of(schema.min_input, schema.inputs), _Operands.of(schema.min_output, schema.outputs)
