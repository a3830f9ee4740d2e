"""`layer_ann`: what ONNX Runtime looks for on nodes to find out on which device they are to run.

The file says which group a node is in, and the session option `session.layer_assignment_settings` says where each group
goes. A name there with `=` before it is compared as a whole, any other one as a beginning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx

from modelexport.errors import SelectionInexpressible, UnknownName, UserError
from modelexport.graph.embed import allow_node_metadata
from modelexport.graph.index import walk_nodes
from modelexport.selecting.dialect import Dialect, Selection, Settings, Sight, Text

KEY = "layer_ann"
_DEVICES = ("gpu", "cpu", "cuda", "dml", "npu", "fpga", "accelerator")
_PROVIDER = re.compile(r"\w+ExecutionProvider")
_RESERVED = re.compile(r"[(),;]")


def write(selection: Selection, settings: Settings) -> Text:
    """The value of the session option."""
    rules: dict[str, list[str]] = {}
    for label, device in zip(_labels(selection, settings), _devices(selection, settings), strict=True):
        rules.setdefault(device, []).append(f"={label}")
    _check_free(selection, settings)
    return Text("; ".join(f"{device}({', '.join(labels)})" for device, labels in rules.items()) + "\n")


def annotate(model: onnx.ModelProto, selection: Selection, settings: Settings) -> None:
    labels = _labels(selection, settings)
    wanted = {node.key: label for group, label in zip(selection.groups, labels, strict=True) for node in group}
    for key, node in walk_nodes(model):
        if key in wanted:
            entry = next((entry for entry in node.metadata_props if entry.key == KEY), None)
            entry = node.metadata_props.add() if entry is None else entry
            entry.key, entry.value = KEY, wanted[key]
    allow_node_metadata(model)


def _labels(selection: Selection, settings: Settings) -> tuple[str, ...]:
    count = len(selection.groups)
    labels = settings.labels or tuple(f"selection{number or ''}" for number in range(count))
    if len(labels) != count:
        raise UserError(
            f"{len(labels)} labels for {count} {'query' if count == 1 else 'queries'}", "Give one for each query."
        )
    if len(set(labels)) < count:
        raise UserError(f"two groups are called {_first_twice(labels)!r}", "Give each a label of its own.")
    for label in labels:
        _check_label(label)
    return labels


def _first_twice(labels: tuple[str, ...]) -> str:
    return next(label for label in labels if labels.count(label) > 1)


def _check_label(label: str) -> None:
    if not label.strip() or label != label.strip() or label.startswith("=") or not label.isprintable():
        raise UserError(
            f"ONNX Runtime cannot be told about the label {label!r}",
            "Give one that is not empty, and does not begin or end with a space, or begin with `=`.",
        )
    if _RESERVED.search(label):
        raise UserError(
            f"the label {label!r} cannot be written into a session option",
            "Leave out ( ) , and ; which mean something.",
        )


def _devices(selection: Selection, settings: Settings) -> tuple[str, ...]:
    devices = settings.devices or (_DEVICES[0],)
    count = len(selection.groups)
    if len(devices) not in (1, count):
        raise UserError(f"{len(devices)} devices for {count} queries", "Give one for each query, or one for all.")
    for device in devices:
        if device.partition(":")[0] not in _DEVICES and not _PROVIDER.fullmatch(device):
            raise UnknownName("device", device, (*_DEVICES, "gpu:nvidia", "gpu:0", "CPUExecutionProvider"))
        if _RESERVED.search(device) or not device.isprintable():
            raise UserError(f"the device {device!r} cannot be written into a session option", "Leave out ( ) , and ;.")
    return devices if len(devices) == count else devices * count


def _check_free(selection: Selection, settings: Settings) -> None:
    """A label that other nodes bear already would take them along."""
    labels = set(_labels(selection, settings))
    taken = list(_strangers(selection, labels))
    if taken:
        raise SelectionInexpressible(
            f"{len(taken)} nodes that are not selected bear the label already, among them {taken[0]}",
            "Give another one: --label NAME.",
        )


def _strangers(selection: Selection, labels: set[str]) -> Iterator[str]:
    chosen = {node.key for node in selection.nodes}
    for node in selection.graph.nodes:
        if node.key not in chosen and node.metadata.get(KEY) in labels:
            yield f"{node.name or node.key!r} ({node.metadata[KEY]})"


LAYER_ANN = Dialect(
    "layer-ann",
    "a copy of the file for ONNX Runtime's placement, and the session option for it",
    write,
    Sight.BODIES,
    by_name=False,
    grouped=True,
    annotate=annotate,
    takes=frozenset({"devices", "labels"}),
)
