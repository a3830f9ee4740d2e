"""Layer precisions for TensorRT's trtexec, as arguments of its command line.

trtexec splits the list at every comma and each entry at its last colon; it removes single quotes, and takes an asterisk
for any characters. There is no way to write these as they are. TensorRT 8.4 to 10 have these arguments; in 11, networks
are strongly typed, and it is ModelOpt's AutoCast that keeps nodes in float.
"""

from __future__ import annotations

from modelexport.errors import SelectionInexpressible, UnknownName
from modelexport.graph.index import FLOATS, Node
from modelexport.selecting.dialect import Dialect, Selection, Settings, Sight, Text

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
_NOT_WRITABLE = {
    ",": "trtexec takes a comma for the end of an entry",
    "*": "trtexec takes an asterisk for any characters",
    "'": "trtexec removes single quotes",
}
# No system lets one argument be longer than Linux does.
_LONGEST = 128 * 1024 - 1


def write(selection: Selection, settings: Settings) -> Text:
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
    typed = [node for node in layers if _makes_floats_alone(node, selection)]
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


def refuses(name: str) -> str:
    if not name.isprintable():
        return "there are control characters in it, and a line holds one argument"
    return next((reason for character, reason in _NOT_WRITABLE.items() if character in name), "")


def _computes_floats(node: Node, selection: Selection) -> bool:
    """What is not known may be a float. A constant is no layer of its own."""
    types = {selection.types.get(output) for output in node.outputs if output}
    return node.op_type != "Constant" and (None in types or not FLOATS.isdisjoint(types))


def _makes_floats_alone(node: Node, selection: Selection) -> bool:
    return all(selection.types.get(output) in FLOATS for output in node.outputs if output)


TENSORRT = Dialect(
    "tensorrt",
    "layer precisions for TensorRT's trtexec (8.4 to 10), one argument on each line",
    write,
    Sight.MAIN,
    refuses=refuses,
    takes=frozenset({"precision"}),
)
