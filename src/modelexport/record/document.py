"""Hierarchy document: provenance as readable JSON, the sidecar `FILE.hierarchy.json`.

    {"path": "first", "class": "Linear", "tag": "", "parameters": [{"name": "weight", "shape": [8, 4], …}], …}
    {"call": ["first", 0], "parent": ["", 0]}

One line for each module, call and node, so that two sidecars can be compared line by line. What the rest implies (tags)
is written for readers and ignored when a document is read. The schema is `schema/hierarchy.schema.json`, its
version `SCHEMA_VERSION` in `provenance.py`; documents of schema 1 stay readable.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

from modelexport.errors import RecordUnreadable, shorten
from modelexport.record import limits
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, TensorInfo, parent_path
from modelexport.record.provenance import (
    SCHEMA_VERSION,
    Attribution,
    Claim,
    Confidence,
    Evidence,
    EvidenceKind,
    NodeEntry,
    Origin,
    Provenance,
)
from modelexport.record.tags import Scope, TagPolicy, TorchNN

SIDECAR_SUFFIX = ".hierarchy.json"
Json = dict[str, Any]

_NEXT = "Put the record back as it was written, or export the model again."

# What reading a record raises where it does not hold what it should.
DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


def write_document(provenance: Provenance) -> str:
    """The document as text, one line for each entry: quick to write, and to read with grep and diff."""
    # For readers only: tags follow from the modules and the policy.
    tags = provenance.tags.by_path
    hierarchy = provenance.hierarchy

    @cache
    def answer(attribution: Attribution) -> str:
        # Most nodes of a module share one attribution; it is put into words once.
        return _text({"tag": provenance.tag(attribution), **attribution_out(attribution)})[1:-1]

    nodes = [
        f'{{"key": {_text(entry.key)}, "name": {_text(entry.name)}, "op_type": {_text(entry.op_type)}, '
        f"{answer(entry.attribution)}}}"
        for entry in provenance.nodes.values()
    ]
    weights = [f'{{"name": {_text(name)}, {answer(item)}}}' for name, item in provenance.initializers.items()]
    parts = {
        "schema": str(SCHEMA_VERSION),
        "origin": _text(origin_out(provenance.origin)),
        "policy": _text(policy_out(provenance.policy)),
        "modules": _lines(_text(module_out(item, tags.get(path, ""))) for path, item in hierarchy.modules.items()),
        "calls": _lines(_text(_call_out(site)) for site in hierarchy.calls),
        "nodes": _lines(nodes),
        "initializers": _lines(weights),
        "absent": _text(dict(provenance.absent)),
    }
    return "{\n" + ",\n".join(f'"{key}": {text}' for key, text in parts.items()) + "\n}\n"


_text = json.JSONEncoder(ensure_ascii=False).encode


def _lines(entries: Iterable[str]) -> str:
    return "[\n" + ",\n".join(entries) + "\n]"


def from_document(document: object) -> Provenance:
    """Read a document back; anything that is not one raises `RecordUnreadable`."""
    if not isinstance(document, dict):
        raise RecordUnreadable("the hierarchy record is not a JSON object", _NEXT)
    check_version(document.get("schema"))
    try:
        provenance = Provenance(
            hierarchy=Hierarchy.of(_modules_in(document["modules"]), map(_call_in, document["calls"])),
            nodes={
                text_in(item["key"]): NodeEntry(
                    item["key"], text_in(item["name"]), text_in(item["op_type"]), attribution_in(item)
                )
                for item in document["nodes"]
            },
            initializers={text_in(item["name"]): attribution_in(item) for item in document["initializers"]},
            origin=origin_in(document["origin"]),
            policy=policy_in(document["policy"]),
            absent=_texts_in(document["absent"]),
        )
        check_coherent(provenance)
    except DAMAGE as error:
        raise RecordUnreadable(f"the hierarchy record is damaged: {shorten(repr(error))}", _NEXT) from error
    return provenance


class PathBudget:
    """Raise ValueError for modules that are too many or too deep, or whose paths and tensors take too much altogether.

    A path repeats the names of all modules above it, so that a chain of modules takes the square of its length; and
    modules that are alike share one list of tensors in a packed record.
    """

    def __init__(self) -> None:
        self._left = limits.PATH_CHARACTERS
        self._modules, self._tensors = limits.MODULES, limits.TENSORS

    def spend(self, path: str, tensors: int, aliases: Sequence[str]) -> None:
        """
        tensors  names of the tensors of the module, with those that are tied to them
        """
        self._modules -= 1
        self._tensors -= tensors * (1 + len(aliases))
        if self._modules < 0:
            raise ValueError(f"it has more than {limits.MODULES:,} modules")
        if self._tensors < 0:
            raise ValueError(f"its modules have more than {limits.TENSORS:,} names of tensors")
        depth = path.count(".") + 1
        if depth > limits.MODULE_DEPTH:
            raise ValueError(f"it has modules more than {limits.MODULE_DEPTH} levels deep")
        # With the paths above, half as long on average: whoever sums up modules looks at each of them.
        self._left -= len(path) * (depth + 1) // 2
        # A tensor has a name below each path of its module.
        self._left -= tensors * sum(len(name) + _SHORTEST_NAME for name in (path, *aliases))
        if self._left < 0:
            raise ValueError(f"its module paths take more than {limits.PATH_CHARACTERS:,} characters")


_SHORTEST_NAME = 16


def count_tensor_names(module: Module) -> int:
    return sum(1 + len(tensor.tied) for tensor in module.tensors)


def check_coherent(provenance: Provenance) -> None:
    """Raise one of `DAMAGE` where the parts of a record do not fit together, or unfold to too much."""
    hierarchy = provenance.hierarchy
    unknown = hierarchy.call_counts.keys() - hierarchy.modules.keys()
    if unknown:
        raise ValueError(f"calls of unknown modules: {sorted(unknown)[:3]}")
    _check_stacks(hierarchy)
    _check_tags(provenance)
    # Both are worked out from all of the hierarchy, and both are kept.
    _ = hierarchy.stacks, provenance.tags.by_path


def _check_stacks(hierarchy: Hierarchy) -> None:
    depths: dict[ModuleCall, int] = {}
    left = limits.STACKED_CALLS
    for site in hierarchy.calls:
        depth = depths[site.call] = 1 if site.parent is None else depths[site.parent] + 1
        left -= depth
        if depth > limits.MODULE_DEPTH:
            raise ValueError(f"it has calls more than {limits.MODULE_DEPTH} levels deep")
        if left < 0:
            raise ValueError(f"its call stacks take more than {limits.STACKED_CALLS:,} entries")


def check_owners(owners: Iterable[tuple[str, int]]) -> None:
    """The same for the owners of all attributions, of which each has a stack."""
    if sum(path.count(".") + 2 for path, _ in owners) > limits.STACKED_CALLS:
        raise ValueError(f"its attributions have owners of more than {limits.STACKED_CALLS:,} levels together")


def _check_tags(provenance: Provenance) -> None:
    """A tag has the classes of all modules above it. It is written out for every node, and so are the reasons."""
    lengths: dict[str, int] = {}
    for path, module in provenance.hierarchy.modules.items():
        above = parent_path(path)
        while above and above not in lengths:
            above = parent_path(above)
        around = lengths.get(above, 0) if path else 0
        # Of its own: the class, and at most the path below the module above.
        lengths[path] = around + len(module.class_name) + len(path) - len(above) + 1
    if sum(lengths.values()) > limits.PATH_CHARACTERS:
        raise ValueError(f"the tags of its modules take more than {limits.PATH_CHARACTERS:,} characters")

    attributions = [*(entry.attribution for entry in provenance.nodes.values()), *provenance.initializers.values()]
    # By identity: nodes share their attributions, and to compare these would take longer than to count.
    uses = Counter(map(id, attributions))
    distinct = {id(attribution): attribution for attribution in attributions}
    written = sum(count * _count_written(distinct[number], lengths) for number, count in uses.items())
    if written > limits.NODE_CHARACTERS:
        raise ValueError(f"what it says of its nodes takes more than {limits.NODE_CHARACTERS:,} characters")


def _count_written(attribution: Attribution, tag_lengths: Mapping[str, int]) -> int:
    ancestor = attribution.ancestor
    tag = 0 if ancestor is None else tag_lengths.get(ancestor.path, 0)
    claimed = _count_claimed(attribution) + sum(map(_count_claimed, attribution.lost))
    return tag + len(attribution.reason) + claimed


def _count_claimed(claim: Attribution | Claim) -> int:
    owners = sum(len(owner.path) + 1 for owner in claim.owners)
    return owners + sum(len(evidence.source) + len(evidence.detail) for evidence in claim.evidence)


def check_version(version: object, newest: int = SCHEMA_VERSION) -> None:
    if not isinstance(version, int):
        raise RecordUnreadable(f"the hierarchy record has no schema version (saw {version!r})", _NEXT)
    if version > newest:
        raise RecordUnreadable(
            f"the hierarchy record has schema {version}, this version of modelexport reads up to {newest}",
            "Update modelexport to read this file.",
        )


def policy_out(policy: TagPolicy) -> Json:
    # Its fields are keys of the schema: to rename one of them is a new version of that.
    return asdict(policy)


def policy_in(item: Json) -> TagPolicy:
    return TagPolicy(
        Scope(item["scope"]),
        TorchNN(item["torch_nn"]),
        _names_in(item["torch_nn_exceptions"]),
        _names_in(item["keep"]),
        _names_in(item["drop"]),
    )


def origin_out(origin: Origin) -> Json:
    return {
        "strategy": origin.strategy,
        "exporter": origin.exporter,
        "graph": origin.graph,
        "model": origin.model,
        "tools": dict(origin.tools),
    } | ({"sizes": _sizes_out(origin.sizes)} if origin.sizes else {})


def _sizes_out(sizes: Mapping[str, Mapping[int, int]]) -> Json:
    return {name: {str(axis): size for axis, size in axes.items()} for name, axes in sizes.items()}


def _sizes_in(item: Json) -> dict[str, dict[int, int]]:
    return {text_in(name): {int(axis): _size_in(size) for axis, size in axes.items()} for name, axes in item.items()}


def _size_in(item: object) -> int:
    if type(item) is not int or item < 1:
        raise ValueError(f"the size of an axis is {item!r}")
    return item


def origin_in(item: Json) -> Origin:
    strategy, exporter, graph, model = (text_in(item[name]) for name in ("strategy", "exporter", "graph", "model"))
    return Origin(strategy, exporter, graph, model, _texts_in(item["tools"]), _sizes_in(item.get("sizes", {})))


def module_out(module: Module, tag: str) -> Json:
    return {
        "path": module.path,
        "class": module.class_name,
        "package": module.package,
        "tag": tag,
        "parameters": [_tensor_out(tensor) for tensor in module.parameters],
        "buffers": [_tensor_out(tensor) for tensor in module.buffers],
        "arguments": list(module.arguments),
        "aliases": list(module.aliases),
        "container": module.container,
    }


def _modules_in(items: Iterable[Json]) -> Iterator[Module]:
    budget = PathBudget()
    for module in map(module_in, items):
        budget.spend(module.path, count_tensor_names(module), module.aliases)
        yield module


def module_in(item: Json) -> Module:
    return Module(
        text_in(item["path"]),
        text_in(item["class"]),
        text_in(item["package"]),
        tuple(map(_tensor_in, item["parameters"])),
        tuple(map(_tensor_in, item["buffers"])),
        _names_in(item["arguments"]),
        _names_in(item["aliases"]),
        bool(item["container"]),
    )


def _tensor_out(tensor: TensorInfo) -> Json:
    item = {"name": tensor.name, "shape": list(tensor.shape), "dtype": tensor.dtype, "nbytes": tensor.nbytes}
    return item | {"tied": list(tensor.tied)} if tensor.tied else item


def _tensor_in(item: Json) -> TensorInfo:
    shape = tuple(map(int, item["shape"]))
    tied = tuple(map(text_in, item.get("tied", ())))
    return TensorInfo(text_in(item["name"]), shape, text_in(item["dtype"]), int(item["nbytes"]), tied)


def _call_out(site: CallSite) -> Json:
    parent = None if site.parent is None else _module_call_out(site.parent)
    item: Json = {"call": _module_call_out(site.call), "parent": parent}
    return item if site.through is None else item | {"through": site.through}


def _call_in(item: Json) -> CallSite:
    parent = item["parent"]
    through = item.get("through")
    return CallSite(
        _module_call_in(item["call"]),
        None if parent is None else _module_call_in(parent),
        None if through is None else int(through),
    )


def _module_call_out(call: ModuleCall) -> list[object]:
    return [call.path, call.index]


def _module_call_in(item: list[Any]) -> ModuleCall:
    path, index = item
    return ModuleCall(text_in(path), int(index))


def attribution_out(attribution: Attribution) -> Json:
    ancestor = attribution.ancestor
    item = {"ancestor": None if ancestor is None else _module_call_out(ancestor), **_claimed_out(attribution)}
    # What most nodes do not have is left out: a record of schema 1 may lack these keys altogether.
    if attribution.reason:
        item["reason"] = attribution.reason
    if attribution.lost:
        item["lost"] = [{**_claimed_out(claim), "strategy": claim.strategy} for claim in attribution.lost]
    if attribution.role:
        item["role"] = attribution.role
    if attribution.layer_id is not None:
        item["layer"] = attribution.layer_id
    return item


def attribution_in(item: Json) -> Attribution:
    ancestor = item["ancestor"]
    return Attribution(
        tuple(map(_module_call_in, item["owners"])),
        None if ancestor is None else _module_call_in(ancestor),
        Confidence.parse(item["confidence"]),
        tuple(map(_evidence_in, item["evidence"])),
        text_in(item.get("reason", "")),
        tuple(map(_claim_in, item.get("lost", ()))),
        text_in(item.get("role", "")),
        _layer_in(item.get("layer")),
    )


def _layer_in(value: object) -> int | None:
    if not (value is None or (isinstance(value, int) and value >= 0)):
        raise TypeError(f"{value!r} stands where a layer should")
    return value


def _claimed_out(claim: Attribution | Claim) -> Json:
    return {
        "owners": [_module_call_out(owner) for owner in claim.owners],
        "confidence": claim.confidence.label,
        "evidence": [[evidence.kind.value, evidence.source, evidence.detail] for evidence in claim.evidence],
    }


def _evidence_in(item: list[Any]) -> Evidence:
    kind, source, detail = item
    return Evidence(EvidenceKind(kind), text_in(source), text_in(detail))


def _claim_in(item: Json) -> Claim:
    return Claim(
        tuple(map(_module_call_in, item["owners"])),
        Confidence.parse(item["confidence"]),
        tuple(map(_evidence_in, item["evidence"])),
        text_in(item["strategy"]),
    )


def text_in(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{shorten(repr(value))} stands where a text should")
    # JSON can name half of a surrogate pair, which no file and no name in ONNX can hold.
    if not value.isascii():
        value.encode()
    return value


def _names_in(items: list[Any]) -> tuple[str, ...]:
    return tuple(map(text_in, items))


def _texts_in(item: Json) -> dict[str, str]:
    return {text_in(key): text_in(value) for key, value in item.items()}
