"""Selection dialects by name: node names, ONNX Runtime, ModelOpt, TensorRT, Olive, layer annotations.

To add a dialect: write a function `Selection, Settings -> Text`, make it a `Dialect` (what the tool can see, whether it
tells groups apart, which names it cannot express), and list it in `DIALECTS`. Checks against the selection are done by
`dialect.py`; the command line, `mx.select` and the documentation read the list.

    ort-exclude  nodes_to_exclude of ONNX Runtime's quantizers: a list of names, each compared as a whole
    modelopt     names are regular expressions, compared from their start: `MatMul_1` would mean `MatMul_10` as well
    tensorrt     trtexec splits the list at commas, each entry at its last colon; quotes and asterisks cannot be
                 written. TensorRT 8.4 to 10 have these arguments; in 11, ModelOpt's AutoCast keeps nodes in float
"""

from __future__ import annotations

import json
import re

from modelexport.errors import SelectionInexpressible, UnknownName
from modelexport.graph.index import FLOATS, Node
from modelexport.graph.protos import ONNX_DOMAINS
from modelexport.transform.select.dialect import Dialect, Selection, Settings, Sight, Text
from modelexport.transform.select.splits import LAYER_ANN, OLIVE_SPLIT


def write_names(selection: Selection, settings: Settings) -> Text:  # noqa: ARG001 - there are none for it
    return Text("".join(f"{name}\n" for name in dict.fromkeys(node.name for node in selection.nodes)))


def refuse_unnamed(name: str) -> str:
    return "" if name.isprintable() else "there are control characters in it, and a line holds one name"


NAMES = Dialect("names", "node names, one on each line", write_names, Sight.ALL, refuses=refuse_unnamed)


# The dynamic quantizer takes a Gemm apart before it asks for names: what multiplies is then called so.
_TAKEN_APART = {"Gemm": "_MatMul"}


def write_ort(selection: Selection, settings: Settings) -> Text:  # noqa: ARG001 - there are none for it
    return Text(json.dumps(list(names_of(selection)), indent=1) + "\n")


def names_of(selection: Selection) -> tuple[str, ...]:
    """Each name under which a quantizer may look for one of the nodes."""
    return tuple(dict.fromkeys(name for node in selection.nodes for name in (node.name, *further(node))))


def further(node: Node) -> tuple[str, ...]:
    """Names that ONNX Runtime's quantizers give to a node before they ask whether it is excluded."""
    suffix = _TAKEN_APART.get(node.op_type)
    return () if suffix is None or node.domain not in ONNX_DOMAINS else (node.name + suffix,)


ORT_EXCLUDE = Dialect(
    "ort-exclude", "nodes_to_exclude of ONNX Runtime's quantizers, as JSON", write_ort, Sight.BODIES, further=further
)


def write_modelopt(selection: Selection, settings: Settings) -> Text:  # noqa: ARG001 - there are none for it
    """Names with all that a regular expression takes for something else escaped, from `^` to `$`."""
    patterns = [f"^{re.escape(name)}$" for name in dict.fromkeys(node.name for node in selection.nodes)]
    return Text(json.dumps({"nodes_to_exclude": patterns}, indent=1) + "\n")


MODELOPT = Dialect("modelopt", "nodes_to_exclude of NVIDIA ModelOpt, as JSON", write_modelopt, Sight.MAIN)


PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_NOT_WRITABLE = {
    ",": "trtexec takes a comma for the end of an entry",
    "*": "trtexec takes an asterisk for any characters",
    "'": "trtexec removes single quotes",
}
# No system lets one argument be longer than Linux does.
_LONGEST = 128 * 1024 - 1


def write_tensorrt(selection: Selection, settings: Settings) -> Text:
    precision = settings.precision or PRECISIONS[0]
    if precision not in PRECISIONS:
        raise UnknownName("precision", precision, PRECISIONS)
    layers = [node for node in selection.nodes if _computes_floats(node, selection)]
    left_out = len(selection.nodes) - len(layers)
    if not layers:
        raise SelectionInexpressible(
            f"none of the {left_out} selected nodes computes floating-point numbers, so that they have no precision",
            "Select nodes that compute with floats.",
        )
    # The type of an output is set where all of them are floats: the indices of a TopK have no precision.
    typed = [node for node in layers if all(selection.types.get(name) in FLOATS for name in node.outputs if name)]
    arguments = ["--precisionConstraints=obey", _listed("--layerPrecisions", layers, precision)]
    if typed:
        arguments.append(_listed("--layerOutputTypes", typed, precision))
    count = f"{left_out} of {len(selection.nodes)} nodes"
    note = f"{count} left out: they hold constants, or compute no floating-point numbers"
    return Text("".join(f"{argument}\n" for argument in arguments), (note,) if left_out else ())


def _listed(option: str, nodes: list[Node], precision: str) -> str:
    argument = f"{option}={','.join(f'{name}:{precision}' for name in dict.fromkeys(node.name for node in nodes))}"
    if len(argument.encode()) > _LONGEST:
        raise SelectionInexpressible(
            f"{option} for {len(nodes)} nodes would be longer than an argument can be ({_LONGEST} bytes)",
            "Select fewer nodes, or select for modelopt, whose AutoCast reads a file.",
        )
    return argument


def refuse_tensorrt(name: str) -> str:
    if not name.isprintable():
        return "there are control characters in it, and a line holds one argument"
    return next((reason for character, reason in _NOT_WRITABLE.items() if character in name), "")


def _computes_floats(node: Node, selection: Selection) -> bool:
    """What is not known may be a float. A constant is no layer of its own."""
    types = {selection.types.get(output) for output in node.outputs if output}
    return node.op_type != "Constant" and (None in types or not FLOATS.isdisjoint(types))


TENSORRT = Dialect(
    "tensorrt",
    "layer precisions for TensorRT's trtexec (8.4 to 10), one argument on each line",
    write_tensorrt,
    Sight.MAIN,
    refuses=refuse_tensorrt,
    takes=frozenset({"precision"}),
)


DIALECTS = {dialect.name: dialect for dialect in (ORT_EXCLUDE, LAYER_ANN, OLIVE_SPLIT, MODELOPT, TENSORRT, NAMES)}
