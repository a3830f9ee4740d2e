"""`nodes_to_exclude` of ONNX Runtime's quantizers: a list of names, each compared as a whole."""

from __future__ import annotations

import json

from modelexport.graph.domains import ONNX_DOMAINS
from modelexport.graph.index import Node
from modelexport.selecting.dialect import Dialect, Selection, Settings, Sight, Text

# The dynamic quantizer takes a Gemm apart before it asks for names: what multiplies is then called so.
_TAKEN_APART = {"Gemm": "_MatMul"}


def write(selection: Selection, settings: Settings) -> Text:  # noqa: ARG001 - there are none for it
    return Text(json.dumps(list(names_of(selection)), indent=1) + "\n")


def names_of(selection: Selection) -> tuple[str, ...]:
    """Each name under which a quantizer may look for one of the nodes."""
    return tuple(dict.fromkeys(name for node in selection.nodes for name in (node.name, *further(node))))


def further(node: Node) -> tuple[str, ...]:
    suffix = _TAKEN_APART.get(node.op_type)
    return () if suffix is None or node.domain not in ONNX_DOMAINS else (node.name + suffix,)


ORT_EXCLUDE = Dialect(
    "ort-exclude", "nodes_to_exclude of ONNX Runtime's quantizers, as JSON", write, Sight.BODIES, further=further
)
