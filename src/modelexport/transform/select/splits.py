"""Splits: dialects that put every node into a group, for pipelines and devices.

    olive-split   {"split_assignments": {"encoder.layer.0": 0, "encoder.layer.1": 1}}
    layer-ann     metadata `layer_ann` on nodes, and the session option `gpu(=first); cpu(=rest)`

Olive's SplitModel matches names, or beginnings of names up to a dot or slash, and runs splits one after the other. A
node that reads something from a later split is moved there silently; such a selection is refused here. ONNX Runtime
compares a label with `=` before it as a whole, any other one as a beginning (`session.layer_assignment_settings`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx

from modelexport.errors import SelectionInexpressible, UnknownName, UserError, some_of
from modelexport.graph.file.metadata import allow_node_metadata
from modelexport.graph.index import MAIN, Graph, Node, walk_nodes
from modelexport.graph.operators import OLIVE_FOLLOWERS
from modelexport.transform.select.dialect import Dialect, Selection, Settings, Sight, Text

_SHOWN = 5


def write_olive(selection: Selection, settings: Settings) -> Text:  # noqa: ARG001 - there are none for it
    wanted = dict(_wanted(selection))
    placed = _placed(selection.graph, wanted)
    _check_order(selection.graph, wanted, placed)
    names = dict(_assignments(selection.graph, wanted, placed))
    # Olive counts the splits that it is told of, and takes them to be the first ones.
    empty = sorted(set(wanted.values()) - set(names.values()))
    if empty:
        raise SelectionInexpressible(
            f"there would be nothing in split {empty[0]}: Olive puts constants and the like where they are read",
            "Select nodes that compute something for each split.",
        )
    return Text(json.dumps({"split_assignments": names}, indent=1) + "\n")


def _wanted(selection: Selection) -> Iterator[tuple[str, int]]:
    """Splits by node key. One query alone, with all that it needs, is the first of two splits; the rest follows."""
    for number, group in enumerate(selection.groups):
        yield from ((node.key, number) for node in group if node.graph == MAIN)
    if len(selection.groups) == 1:
        following = list(_following(selection))
        if not following:
            raise SelectionInexpressible(
                "nothing that follows the selected nodes is left for a second split",
                "Select less; or give one query for each split: QUERY QUERY.",
            )
        yield from ((key, 1) for key in following)


def _following(selection: Selection) -> Iterator[str]:
    """What reads something of the selection, and is not needed by any of it."""
    graph = selection.graph
    reached = {node.key for node in selection.nodes}
    needed = set(reached)
    nodes = list(_main(graph))
    for node in reversed(nodes):
        if any(after.key in needed for after in graph.successors(node)):
            needed.add(node.key)
    for node in nodes:
        if node.key not in reached and any(before.key in reached for before in graph.predecessors(node)):
            reached.add(node.key)
            if node.key not in needed:
                yield node.key


def _placed(graph: Graph, wanted: Mapping[str, int]) -> dict[str, int]:
    """Where Olive will put each node of the main graph: the rules of its SplitModel, gone through in its order.

    A node runs no earlier than all that it reads from; what reads nothing goes to the first split that reads it.
    """
    placed: dict[str, int] = {}
    nodes = list(_main(graph))
    for node in nodes:
        asked = None if node.op_type in OLIVE_FOLLOWERS else wanted.get(node.key)
        before = [placed[predecessor.key] for predecessor in graph.predecessors(node) if predecessor.key in placed]
        if node.op_type != "Constant" and (asked is not None or before):
            placed[node.key] = max([*before, *([] if asked is None else [asked])])
    for node in reversed(nodes):
        if node.key not in placed:
            after = [placed[successor.key] for successor in graph.successors(node) if successor.key in placed]
            placed[node.key] = min(after, default=0)
    return placed


def _check_order(graph: Graph, wanted: Mapping[str, int], placed: Mapping[str, int]) -> None:
    moved = [
        f"{graph.by_key[key].name!r} (of split {split}, reads from split {placed[key]})"
        for key, split in wanted.items()
        if _counts(graph.by_key[key]) and placed[key] != split
    ]
    if moved:
        raise SelectionInexpressible(
            f"Olive's splits run one after the other, and some nodes read what a later split makes: "
            f"{some_of(moved, _SHOWN)}",
            "Let each query select a stretch of the model, with all that lies between; the first one first.",
        )


@dataclass
class _Step:
    """A step of names.

    splits  of all nodes at or below it
    asked   whether somebody asked for one of these nodes
    own     splits of the nodes whose names end here
    """

    splits: set[int] = field(default_factory=set)
    asked: bool = False
    own: set[int] = field(default_factory=set)
    below: dict[str, _Step] = field(default_factory=dict)


def _assignments(graph: Graph, wanted: Mapping[str, int], placed: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """As few beginnings of names as will do; Olive goes by the longest one that fits."""
    left: list[tuple[str, _Step, int | None]] = [("", _steps(graph, wanted, placed), None)]
    while left:
        name, step, inherited = left.pop()
        if len(step.splits) == 1 and name:
            split = next(iter(step.splits))
            if split != inherited and (step.asked or inherited is not None):
                yield name, split
            continue
        if len(step.own) > 1:
            raise SelectionInexpressible(
                f"Olive does not tell nodes apart whose names it all reads as {name!r}",
                "Write a copy with other names: --named FILE.onnx.",
            )
        # The longest beginning wins, so that only what differs from the step above has to be written.
        if step.own and step.own != {inherited}:
            inherited = next(iter(step.own))
            yield name, inherited
        for part, below in reversed(step.below.items()):
            left.append((f"{name}.{part}" if name else part, below, inherited))


def _steps(graph: Graph, wanted: Mapping[str, int], placed: Mapping[str, int]) -> _Step:
    """The names of all nodes as a tree of their steps: `/encoder/layer.0/MatMul` has four for Olive."""
    root = _Step()
    for node in (node for node in _main(graph) if _counts(node) and node.name):
        step = root
        for part in node.name.replace("/", ".").lstrip(".").split("."):
            step = step.below.setdefault(part, _Step())
            step.splits.add(placed[node.key])
            step.asked |= node.key in wanted
        step.own.add(placed[node.key])
    return root


def _main(graph: Graph) -> Iterator[Node]:
    return (node for node in graph.nodes if node.graph == MAIN)


def _counts(node: Node) -> bool:
    """Whether Olive asks for a node's split; constants and the like go where they are read."""
    return node.op_type not in OLIVE_FOLLOWERS


OLIVE_SPLIT = Dialect(
    "olive-split",
    "split_assignments of Olive's SplitModel, as JSON; one query for each split",
    write_olive,
    Sight.MAIN,
    grouped=True,
)


KEY = "layer_ann"
# The first is meant if none is given.
_DEVICES = ("gpu", "cpu", "cuda", "dml", "npu", "fpga", "accelerator")
_PROVIDER = re.compile(r"\w+ExecutionProvider")
# What separates devices and labels in the session option; it has no escape for them.
_RESERVED = re.compile(r"[(),;]")


def write_layer_ann(selection: Selection, settings: Settings) -> Text:
    rules: dict[str, list[str]] = {}
    for label, device in zip(_labels(selection, settings), _devices(selection, settings), strict=True):
        rules.setdefault(device, []).append(f"={label}")
    _check_free(selection, settings)
    return Text("; ".join(f"{device}({', '.join(labels)})" for device, labels in rules.items()) + "\n")


def annotate(model: onnx.ModelProto, selection: Selection, settings: Settings) -> None:
    """Write labels on the nodes, in place: ONNX Runtime reads them from `metadata_props`."""
    labels = _labels(selection, settings)
    wanted = {node.key: label for group, label in zip(selection.groups, labels, strict=True) for node in group}
    for key, node in walk_nodes(model):
        if key in wanted:
            entry = next((entry for entry in node.metadata_props if entry.key == KEY), None)
            entry = node.metadata_props.add() if entry is None else entry
            entry.key, entry.value = KEY, wanted[key]
    allow_node_metadata(model)


def _labels(selection: Selection, settings: Settings) -> tuple[str, ...]:
    """One for each query; checked, because a label is compared as text and a wrong one matches nothing silently."""
    count = len(selection.groups)
    labels = settings.labels or tuple(f"selection{number or ''}" for number in range(count))
    if len(labels) != count:
        raise UserError(
            f"{len(labels)} labels for {count} {'query' if count == 1 else 'queries'}", "Give one for each query."
        )
    repeated = next((label for label in labels if labels.count(label) > 1), None)
    if repeated is not None:
        raise UserError(f"two groups are called {repeated!r}", "Give each a label of its own.")
    for label in labels:
        _check_label(label)
    return labels


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
    labels = _labels(selection, settings)
    chosen = {node.key for node in selection.nodes}
    bearers = [node for node in selection.graph.nodes if node.key not in chosen and node.metadata.get(KEY) in labels]
    if bearers:
        first = f"{bearers[0].name or bearers[0].key!r} ({bearers[0].metadata[KEY]})"
        raise SelectionInexpressible(
            f"{len(bearers)} nodes that are not selected bear the label already, among them {first}",
            "Give another one: --label NAME.",
        )


LAYER_ANN = Dialect(
    "layer-ann",
    "a copy of the file for ONNX Runtime's placement, and the session option for it",
    write_layer_ann,
    Sight.BODIES,
    by_name=False,
    grouped=True,
    annotate=annotate,
    takes=frozenset({"devices", "labels"}),
)
