"""Metadata of a tagged file: keys on nodes, one record for the whole model, names on request.

    node    pkg.modelexport.module = encoder.layer.0.fc     read by viewers; optimizers may drop it
    model   pkg.modelexport.record = <packed>               read by every verb; survives optimizers

Nothing but metadata is touched (and node names where asked): same nodes, edges, attributes, weights, outputs. Files
that `fold` wrote are known by the domain of their functions, and refused by verbs that need every node (`ensure_flat`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from modelexport.errors import FileUnreadable, UserError, quote_argument, some_of
from modelexport.graph.index import Node, walk_nodes
from modelexport.graph.protos import subgraphs
from modelexport.record.document import SIDECAR_SUFFIX
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.packed import pack
from modelexport.record.provenance import Attribution, Provenance

if TYPE_CHECKING:
    from modelexport.record.outline import Outline

PREFIX = "pkg.modelexport."
RECORD_KEY = f"{PREFIX}record"
OUTLINE_KEY = f"{PREFIX}outline"
CUT_KEY = f"{PREFIX}cut_from"
TAG_KEY = f"{PREFIX}tag"
MODULE_KEY = f"{PREFIX}module"
MODULES_KEY = f"{PREFIX}modules"
CONFIDENCE_KEY = f"{PREFIX}confidence"
EVIDENCE_KEY = f"{PREFIX}evidence"
ROLE_KEY = f"{PREFIX}role"
LAYER_KEY = f"{PREFIX}layer"
# The version of the format that the file had before keys were written on nodes, if it had to be raised for them.
IR_VERSION_KEY = f"{PREFIX}ir_version"
NODE_KEYS = (TAG_KEY, MODULE_KEY, MODULES_KEY, CONFIDENCE_KEY, EVIDENCE_KEY, ROLE_KEY, LAYER_KEY)
MODEL_KEYS = (RECORD_KEY, OUTLINE_KEY)

# ONNX has had metadata on nodes since this version of its format.
_IR_WITH_NODE_METADATA = 10
_EXPORTER_PREFIXES = ("pkg.torch.", "pkg.onnxscript.")
# torch writes this one without a prefix.
_EXPORTER_KEYS = ("namespace",)


class Level(StrEnum):
    """How much goes into the file: keys on every node and the record; the record alone; nothing."""

    FULL = "full"
    LEAN = "lean"
    NONE = "none"


class Names(StrEnum):
    """Node names: as torch gave them, or `/encoder/layer.0/attention/self/query/MatMul`."""

    TORCH = "torch"
    HIERARCHICAL = "hierarchical"


@dataclass(frozen=True)
class EmbedOptions:
    level: Level = Level.FULL
    names: Names = Names.TORCH
    strip_exporter_metadata: bool = False


def embed(
    model: onnx.ModelProto, provenance: Provenance, options: EmbedOptions, outline: Outline | None = None
) -> None:
    """Write provenance into the model, in place. Keys of an earlier embedding are replaced.

    outline  of the model's graph: with it, a file that a tool makes of this one can be traced back without this one
    """
    if options.strip_exporter_metadata:
        strip_exporter_metadata(model)
    version = _own_ir_version(model)
    _drop(model, (), (RECORD_KEY, OUTLINE_KEY, IR_VERSION_KEY))
    level = _fitting_level(version, provenance, options.level)
    if level is Level.FULL:
        write_node_keys(model, provenance)
        if model.ir_version != version:
            _add(model, [(IR_VERSION_KEY, str(version))])
    else:
        for _, node in walk_nodes(model):
            _drop(node, (PREFIX,), ())
    if level is not Level.NONE:
        embed_record(model, provenance, outline)


def _fitting_level(version: int, provenance: Provenance, level: Level) -> Level:
    """A file that tells of its modules itself keeps its version, so that whoever reads it still can: no keys on nodes.

    With a model at hand, somebody exported the file lately, and keys on nodes are worth a newer version.
    """
    is_kept = version < _IR_WITH_NODE_METADATA and provenance.origin.is_file
    return Level.LEAN if is_kept and level is Level.FULL else level


def embed_record(model: onnx.ModelProto, provenance: Provenance, outline: Outline | None = None) -> None:
    """Write the record into the model, in the place of an earlier one; nodes are left alone."""
    _drop(model, (), (RECORD_KEY, OUTLINE_KEY))
    _add(model, [(RECORD_KEY, pack(provenance))])
    if outline is not None:
        from modelexport.record.outline import pack_outline

        _add(model, [(OUTLINE_KEY, pack_outline(outline, provenance))])


def level_of(model: onnx.ModelProto) -> Level:
    if any(read_node_keys(node) for _, node in walk_nodes(model)):
        return Level.FULL
    return Level.NONE if read_record(model) is None else Level.LEAN


def rename_nodes(model: onnx.ModelProto, attributions: Mapping[str, Attribution]) -> dict[str, str]:
    """Name every node by its module's path and its operator, numbered where that is not unique: names by node key."""
    numbers: dict[str, int] = {}
    names: dict[str, str] = {}
    for key, node in walk_nodes(model):
        node.name = names[key] = _unused(_hierarchical(node, attributions.get(key)), numbers)
    return names


def name_nodes(
    model: onnx.ModelProto, attributions: Mapping[str, Attribution], refuses: Callable[[str], str]
) -> tuple[str, ...]:
    """Name nodes that have no name, a refused one, or that of one before; others keep theirs. Keys of the renamed."""
    numbers: dict[str, int] = {}
    nameless: list[tuple[str, onnx.NodeProto]] = []
    for key, node in walk_nodes(model):
        if not node.name or node.name in numbers or refuses(node.name):
            nameless.append((key, node))
        else:
            numbers[node.name] = 0
    for key, node in nameless:
        wanted = re.sub(r"[^\w./#-]", "_", _hierarchical(node, attributions.get(key)))
        node.name = _unused(wanted, numbers)
    return tuple(key for key, _ in nameless)


def _hierarchical(node: onnx.NodeProto, attribution: Attribution | None) -> str:
    scope = _scope(attribution.ancestor) if attribution and attribution.ancestor else ""
    return f"{scope}/{node.op_type}"


def _unused(name: str, numbers: dict[str, int]) -> str:
    """The name, numbered if it is in use. `numbers` holds every used name with the last number put behind it."""
    candidate = name
    while candidate in numbers:
        numbers[name] += 1
        candidate = f"{name}_{numbers[name]}"
    numbers[candidate] = 0
    return candidate


def write_node_keys(model: onnx.ModelProto, provenance: Provenance, only: Collection[str] | None = None) -> None:
    """Put the keys of every node right, whatever they say now. `only`: of these nodes, by their keys."""
    keys_of = cache(partial(node_keys, provenance))
    for key, node in walk_nodes(model):
        if only is not None and key not in only:
            continue
        _drop(node, (PREFIX,), ())
        entry = provenance.nodes.get(key)
        if entry is not None:
            _add(node, keys_of(entry.attribution).items())
    allow_node_metadata(model)


def allow_node_metadata(model: onnx.ModelProto) -> None:
    """Raise the version of the format to one that has metadata on nodes."""
    model.ir_version = max(model.ir_version, _IR_WITH_NODE_METADATA)


def node_keys(provenance: Provenance, attribution: Attribution) -> dict[str, str]:
    several, layer = len(attribution.owners) > 1, attribution.layer_id
    values = {
        CONFIDENCE_KEY: attribution.confidence.label,
        TAG_KEY: provenance.tag(attribution) or None,
        # The model itself has the empty path, which is a module all the same.
        MODULE_KEY: attribution.module,
        MODULES_KEY: json.dumps(attribution.modules, ensure_ascii=False) if several else None,
        EVIDENCE_KEY: "; ".join(map(str, attribution.evidence)) or None,
        ROLE_KEY: attribution.role or None,
        LAYER_KEY: None if layer is None else str(layer),
    }
    return {key: value for key, value in values.items() if value is not None}


def read_node_keys(node: onnx.NodeProto) -> dict[str, str]:
    return {entry.key: entry.value for entry in node.metadata_props if entry.key.startswith(PREFIX)}


def count_differing_nodes(nodes: Iterable[Node], provenance: Provenance) -> int:
    """How many nodes carry keys, and not those of the record.

    Read of every file that is opened, so expected keys are made once for each attribution, which nodes share, and what
    a node carries is held against them as it is read: 3 % of `analyze` of 20,000 nodes.
    """
    expected_keys: dict[int, dict[str, str]] = {}
    count = 0
    for node in nodes:
        if not node.metadata:
            continue
        entry, expected = provenance.nodes.get(node.key), {}
        if entry is not None:
            attribution = entry.attribution
            expected = expected_keys.get(id(attribution), {})
            if not expected:
                expected = expected_keys[id(attribution)] = node_keys(provenance, attribution)
        equal = other = 0
        for name, value in node.metadata.items():
            if name in expected and expected[name] == value:
                equal += 1
            elif name.startswith(PREFIX):
                other += 1
        count += bool(other or 0 < equal < len(expected))
    return count


def read_record(model: onnx.ModelProto) -> str | None:
    return _read(model, RECORD_KEY)


def read_outline(model: onnx.ModelProto) -> str | None:
    return _read(model, OUTLINE_KEY)


def _read(model: onnx.ModelProto, key: str) -> str | None:
    return next((entry.value for entry in model.metadata_props if entry.key == key), None)


def strip_metadata(model: onnx.ModelProto, prefixes: tuple[str, ...], keys: tuple[str, ...]) -> None:
    """Remove entries with these prefixes or keys from everything that can carry metadata."""
    for holder in _holders(model):
        _drop(holder, prefixes, keys)


def strip_exporter_metadata(model: onnx.ModelProto) -> None:
    strip_metadata(model, _EXPORTER_PREFIXES, _EXPORTER_KEYS)


def strip_own_metadata(model: onnx.ModelProto, kept: frozenset[str]) -> int:
    """Remove every key of ours but those that are kept; how many there were. The format's version is put back."""
    version = _own_ir_version(model)
    count = 0
    for holder in _holders(model):
        own = [entry.key for entry in holder.metadata_props if entry.key.startswith(PREFIX)]
        gone = tuple(key for key in own if key not in kept)
        _drop(holder, (), gone)
        count += len(gone)
    if kept.isdisjoint(NODE_KEYS):
        model.ir_version = version
    elif model.ir_version != version:
        _add(model, [(IR_VERSION_KEY, str(version))])
    return count


def own_keys(*holders: _Holder) -> frozenset[str]:
    keys = (entry.key for holder in holders for entry in holder.metadata_props)
    return frozenset(key for key in keys if key.startswith(PREFIX))


def _own_ir_version(model: onnx.ModelProto) -> int:
    """The version of the format that a file has, or had before keys were written on its nodes."""
    stated = _read(model, IR_VERSION_KEY) or ""
    return min(int(stated), model.ir_version) if stated.isdecimal() else model.ir_version


def _drop(holder: _Holder, prefixes: tuple[str, ...], keys: tuple[str, ...]) -> None:
    if not holder.metadata_props:
        return
    pairs = [(entry.key, entry.value) for entry in holder.metadata_props]
    kept = [(key, value) for key, value in pairs if not (key.startswith(prefixes) or key in keys)]
    if len(kept) != len(pairs):
        del holder.metadata_props[:]
        _add(holder, kept)


def sidecar_path(path: Path) -> Path:
    return path.with_suffix(SIDECAR_SUFFIX)


_Holder = (
    onnx.ModelProto | onnx.GraphProto | onnx.FunctionProto | onnx.NodeProto | onnx.ValueInfoProto | onnx.TensorProto
)


def _holders(model: onnx.ModelProto) -> Iterable[_Holder]:
    yield model
    yield from _graph_holders(model.graph)
    for function in model.functions:
        yield function
        yield from function.value_info
    for _, node in walk_nodes(model):
        yield node
        for attribute in node.attribute:
            # `t` of an attribute that has none is an empty tensor, which is in no file.
            yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
        for body in subgraphs(node):
            yield from _graph_holders(body)


def _graph_holders(graph: onnx.GraphProto) -> Iterable[_Holder]:
    yield graph
    yield from (*graph.input, *graph.output, *graph.value_info)
    yield from graph.initializer


def _add(holder: _Holder, pairs: Iterable[tuple[str, str]]) -> None:
    for key, value in pairs:
        entry = holder.metadata_props.add()
        entry.key, entry.value = key, value


def _scope(call: ModuleCall) -> str:
    """`encoder.layer.0.attention` as `/encoder/layer.0/attention`: a number stays with the name before it."""
    parts: list[str] = []
    for name in call.path.split(".") if call.path else []:
        if name.isdecimal() and parts:
            parts[-1] += f".{name}"
        else:
            parts.append(name)
    if parts:
        parts[-1] += str(call).removeprefix(call.path)
    return "".join(f"/{part}" for part in parts)


FOLDED_DOMAIN = "pkg.modelexport.modules"
# In the metadata of a folded model: what it takes to make it flat again.
FOLDED_KEY = "pkg.modelexport.folded"


def is_folded(model: onnx.ModelProto) -> bool:
    return any(function.domain == FOLDED_DOMAIN for function in model.functions)


def ensure_flat(model: onnx.ModelProto, subject: str) -> None:
    """Raise UserError for a folded model, where the nodes themselves are needed. `subject` is what it is called."""
    if is_folded(model):
        raise UserError(
            f"{subject} is folded: its modules are functions, and the nodes of several of them are one",
            f"Make it flat first: `modelexport flatten {quote_argument(subject)} -o FILE`.",
        )


def ensure_whole(model: onnx.ModelProto, subject: str) -> None:
    """Raise FileUnreadable for a folded model that a tool took the functions out of, and left the calls."""
    known = {function.name for function in model.functions if function.domain == FOLDED_DOMAIN}
    called = dict.fromkeys(node.op_type for _, node in walk_nodes(model) if node.domain == FOLDED_DOMAIN)
    gone = [name for name in called if name not in known]
    if gone:
        raise FileUnreadable(
            f"{subject} calls functions that are not in it: {some_of(gone)}. "
            "A tool that does not know functions wrote it after it was folded",
            "Flatten the folded file first, and give the tool the flat one.",
        )
