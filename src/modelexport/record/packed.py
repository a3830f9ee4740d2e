"""Packed record: provenance in one string, small enough to travel inside the ONNX file.

It is kept in *model-level* metadata, which survives optimizers that erase everything written on nodes. What repeats is
written once and referred to by number, rows become columns (which compress far better), and what follows from the rest
(tags, enclosing calls, call numbers) is left out. Numbers are written as steps (`columns.py`), so that one layer is the
same bytes as the next. Then LZMA, then base 85, because ONNX metadata must be text.
`Table`s of distinct values and compressed text are shared with the outline. A change that older versions cannot read
raises `PACKED_VERSION`; records of version 1 (no steps, bzip2) stay readable.
https://onnx.ai/onnx/repo-docs/MetadataProps.html
"""

from __future__ import annotations

import base64
import bz2
import json
import lzma
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

from modelexport.errors import RecordUnreadable
from modelexport.record import document, limits
from modelexport.record.columns import fold_columns, unfold_columns
from modelexport.record.hierarchy import CallSite, Hierarchy, Module, ModuleCall, join, parent_path
from modelexport.record.provenance import Attribution, NodeEntry, Provenance
from modelexport.record.tags import TagPolicy


class Table:
    """Distinct values in the order of first use."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._numbers: dict[str, int] = {}

    def number(self, value: Any) -> int:
        # Lists cannot be keys, and 1 and True must stay two values.
        key = json.dumps(value)
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(value)
        return self._numbers[key]


# Without a header, which would say what is always the same; in text, bytes are aligned to nothing (`pb`).
_LZMA: Sequence[Mapping[str, int]] = (
    {"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 22, "lc": 2, "lp": 0, "pb": 0},
)


def squeeze(content: Any) -> str:
    """As text that ONNX metadata can hold."""
    text = json.dumps(fold_columns(content), separators=(",", ":"), ensure_ascii=False)
    return squeeze_bytes(text.encode("utf-8", "surrogatepass"))


def squeeze_bytes(data: bytes) -> str:
    return base64.b85encode(lzma.compress(data, format=lzma.FORMAT_RAW, filters=_LZMA)).decode("ascii")


def unsqueeze(text: str, largest: int | None = None) -> Any:
    """Raises ValueError for what `squeeze` did not write, and for what unfolds to more than `largest`."""
    inflater = lzma.LZMADecompressor(format=lzma.FORMAT_RAW, filters=_LZMA)
    try:
        return unfold_columns(json.loads(_inflate(inflater, text, largest)))
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from error


def squeeze_bzip2(content: Any) -> str:
    """The same without steps, for what is not in columns, and as records of version 1 are."""
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return base64.b85encode(bz2.compress(text)).decode("ascii")


def unsqueeze_bzip2(text: str, largest: int | None = None) -> Any:
    """Raises OSError as well."""
    return json.loads(_inflate(bz2.BZ2Decompressor(), text, largest))


def _inflate(inflater: bz2.BZ2Decompressor | lzma.LZMADecompressor, text: str, largest: int | None) -> bytes:
    largest = largest or limits.RECORD_BYTES
    data = inflater.decompress(base64.b85decode(text), largest)
    if not inflater.eof:
        raise ValueError("it is cut short" if inflater.needs_input else f"it unfolds to more than {largest} bytes")
    return data


# Of the embedded record; the sidecar has a version of its own (`SCHEMA_VERSION`).
PACKED_VERSION = 2
_NAME = "modelexport-record"
_NOT_THROUGH = -1


def pack(provenance: Provenance) -> str:
    return f"{_NAME}-{PACKED_VERSION}:{squeeze(_fold(provenance))}"


def unpack(packed: str) -> Provenance:
    name, _, payload = packed.partition(":")
    kind, _, version = name.rpartition("-")
    if kind != _NAME:
        raise RecordUnreadable(f"the embedded record is not one: it starts with {packed[:24]!r}")
    # Nobody gets to a version of more digits than these, and Python refuses to read one of some thousand.
    number = int(version[:9]) if version.isdecimal() else None
    document.check_version(number, PACKED_VERSION)
    try:
        provenance = _unfold(unsqueeze_bzip2(payload) if number == 1 else unsqueeze(payload))
        document.check_coherent(provenance)
    except (*document.DAMAGE, OSError, EOFError, RecursionError) as error:
        raise RecordUnreadable(
            f"the embedded record is damaged: {error}", "Export the model again, or read its .hierarchy.json."
        ) from error
    return provenance


def _fold(provenance: Provenance) -> dict[str, Any]:
    numbers = {path: number for number, path in enumerate(provenance.hierarchy.modules)}
    answers = Table()
    operators = Table()
    roles = Table()
    entries = provenance.nodes.values()
    weights = provenance.initializers.values()

    @cache
    def answer(attribution: Attribution) -> int:
        return answers.number(_fold_answer(attribution, numbers))

    return {
        "origin": document.origin_out(provenance.origin),
        "policy": _fold_policy(provenance.policy),
        "absent": [[numbers.get(path, path) for path in provenance.absent], list(provenance.absent.values())],
        "modules": _fold_modules(provenance.hierarchy.modules.values(), numbers),
        "calls": _fold_calls(provenance.hierarchy, numbers),
        "through": [_NOT_THROUGH if site.through is None else site.through for site in provenance.hierarchy.calls],
        # Columns: alike values stand side by side, which compresses far better than rows.
        "keys": [entry.key for entry in entries],
        **_fold_names(entries),
        "operators": [operators.number(entry.op_type) for entry in entries],
        "answers": [answer(entry.attribution) for entry in entries],
        "roles": [roles.number(entry.attribution.role) for entry in entries],
        "initializers": list(provenance.initializers),
        "owners": [answer(item) for item in weights],
        "weight_roles": [roles.number(item.role) for item in weights],
        "operator_table": operators.values,
        "answer_table": answers.values,
        "role_table": roles.values,
    }


def _unfold(folded: Mapping[str, Any]) -> Provenance:
    modules = _unfold_modules(folded["modules"])
    paths = [module.path for module in modules]
    calls = _unfold_calls(folded["calls"], paths)
    # Records were written without this at first.
    through = folded.get("through", [_NOT_THROUGH] * len(calls))
    sites = zip(calls, through, strict=True)
    hierarchy = Hierarchy.of(
        modules, [site if axes == _NOT_THROUGH else replace(site, through=int(axes)) for site, axes in sites]
    )
    owners_of = [_unfold_owners(item[0], paths) for item in folded["answer_table"]]
    document.check_owners(chain.from_iterable(owners_of))
    rows = zip(owners_of, folded["answer_table"], strict=True)
    answers = [_unfold_answer(owners, item, hierarchy) for owners, item in rows]
    operators = list(map(document.text_in, folded["operator_table"]))
    # Records were written without roles at first.
    roles = list(map(document.text_in, folded.get("role_table", [""])))
    keys = list(map(document.text_in, folded["keys"]))
    names = map(document.text_in, _unfold_names(folded, keys))
    node_roles = folded.get("roles", [0] * len(folded["keys"]))
    weight_roles = folded.get("weight_roles", [0] * len(folded["initializers"]))
    columns = zip(keys, names, folded["operators"], folded["answers"], node_roles, strict=True)
    owners = zip(map(document.text_in, folded["initializers"]), folded["owners"], weight_roles, strict=True)

    @cache
    def answer(index: int, role: int) -> Attribution:
        return replace(answers[index], role=roles[role])

    return Provenance(
        hierarchy=hierarchy,
        nodes={key: NodeEntry(key, name, operators[op], answer(index, role)) for key, name, op, index, role in columns},
        initializers={name: answer(index, role) for name, index, role in owners},
        origin=document.origin_in(folded["origin"]),
        policy=document.policy_in({**document.policy_out(TagPolicy()), **folded["policy"]}),
        absent=_unfold_absent(folded["absent"], paths),
    )


def _fold_policy(policy: TagPolicy) -> dict[str, Any]:
    """What is not the default, which belongs to the version: another default is another version."""
    default = document.policy_out(TagPolicy())
    return {name: value for name, value in document.policy_out(policy).items() if value != default[name]}


# Stand in a name for the key of its node, and before what the key has more than the name.
_KEY, _SHORT_OF = "\0", "\1"


def _fold_names(entries: Collection[NodeEntry]) -> dict[str, Any]:
    """Most names and keys are made of each other: `node_linear` of `linear`, `/fc/Gemm_output_0` of `/fc/Gemm`."""
    named_by_key = not any(mark in entry.name for entry in entries for mark in (_KEY, _SHORT_OF))
    names = [_name_by_key(entry) if named_by_key else entry.name for entry in entries]
    return {"names": names, "named_by_key": named_by_key}


def _name_by_key(entry: NodeEntry) -> str:
    if entry.key and entry.key in entry.name:
        return entry.name.replace(entry.key, _KEY, 1)
    is_beginning = entry.name and entry.key.startswith(entry.name)
    return _SHORT_OF + entry.key.removeprefix(entry.name) if is_beginning else entry.name


def _unfold_names(folded: Mapping[str, Any], keys: Iterable[str]) -> Iterator[str]:
    columns = zip(keys, folded["names"], strict=True)
    # Version 1 has whole names.
    named_by_key = folded.get("named_by_key", False)
    for key, name in columns:
        if named_by_key and _KEY in name:
            yield name.replace(_KEY, key, 1)
        elif named_by_key and name.startswith(_SHORT_OF):
            yield key.removesuffix(name[1:])
        else:
            yield name


_NOWHERE: dict[str, Any] = {"path": "", "aliases": []}
_ROW = ("class", "package", "parameters", "buffers", "arguments", "container")


def _fold_modules(modules: Iterable[Module], numbers: Mapping[str, int]) -> dict[str, Any]:
    """A module is its parent, its own name, and a row that all modules like it share."""
    rows = Table()
    listed = list(modules)
    documents = [document.module_out(module, "") for module in listed]
    parents = [numbers.get(parent_path(module.path), -1) if module.path else -1 for module in listed]
    columns = list(zip(listed, parents, strict=True))
    return {
        "parents": parents,
        # A module whose parent is not listed keeps its whole path.
        "names": [module.path if parent < 0 else module.path.rpartition(".")[2] for module, parent in columns],
        "rows": [rows.number([row[name] for name in _ROW]) for row in documents],
        "aliases": {str(index): module.aliases for index, module in enumerate(listed) if module.aliases},
        "row_table": rows.values,
    }


def _unfold_modules(folded: Mapping[str, Any]) -> list[Module]:
    paths: list[str] = []
    modules: list[Module] = []
    budget = document.PathBudget()
    # Modules that are alike share one row, and so all that is made of it.
    rows = [document.module_in({**dict(zip(_ROW, row, strict=True)), **_NOWHERE}) for row in folded["row_table"]]
    tensors = list(map(document.count_tensor_names, rows))
    _check_rows(folded["row_table"], folded["rows"])
    columns = zip(folded["parents"], folded["names"], folded["rows"], strict=True)
    for index, (parent, name, row) in enumerate(columns):
        paths.append(join(paths[parent], name) if parent >= 0 else name)
        aliases = tuple(map(document.text_in, folded["aliases"].get(str(index), ())))
        budget.spend(document.text_in(paths[-1]), tensors[row], aliases)
        modules.append(replace(rows[row], path=paths[-1], aliases=aliases))
    return modules


def _check_rows(table: Sequence[Any], used: Sequence[int]) -> None:
    """Raise ValueError for rows that take too much where each is written out for every module, as in a sidecar."""
    lengths = [len(json.dumps(row)) for row in table]
    if sum(lengths[row] for row in used) > limits.MODULE_CHARACTERS:
        raise ValueError(f"what it says of its modules takes more than {limits.MODULE_CHARACTERS:,} characters")


def _fold_calls(hierarchy: Hierarchy, numbers: Mapping[str, int]) -> list[list[int]]:
    """Modules in the order of their calls, and for each the index of the call that it was made from."""
    indices = hierarchy.call_order
    called = [numbers[site.call.path] for site in hierarchy.calls]
    # Relative to the call itself, because that repeats from layer to layer.
    parents = [0 if site.parent is None else index - indices[site.parent] for index, site in enumerate(hierarchy.calls)]
    return [called, parents]


def _unfold_calls(folded: Sequence[Sequence[int]], paths: Sequence[str]) -> list[CallSite]:
    # The number of a call is how often its module was called before it, so it is not stored either.
    counts: dict[str, int] = {}
    calls: list[ModuleCall] = []
    sites: list[CallSite] = []
    for index, (module, back) in enumerate(zip(*folded, strict=True)):
        path = paths[module]
        calls.append(ModuleCall(path, counts.get(path, 0)))
        counts[path] = counts.get(path, 0) + 1
        sites.append(CallSite(calls[-1], calls[index - back] if back else None))
    return sites


def _fold_answer(attribution: Attribution, numbers: Mapping[str, int]) -> list[Any]:
    item = document.attribution_out(attribution)
    owners = [[numbers.get(path, path), index] for path, index in item["owners"]]
    rest = [item["confidence"], item["evidence"], item.get("reason", ""), item.get("lost", []), item.get("layer")]
    return [owners, *rest]


def _unfold_owners(folded: Iterable[Sequence[Any]], paths: Sequence[str]) -> list[tuple[str, int]]:
    return [(paths[module] if isinstance(module, int) else document.text_in(module), index) for module, index in folded]


def _unfold_answer(owners: Sequence[tuple[str, int]], folded: Sequence[Any], hierarchy: Hierarchy) -> Attribution:
    # Not stored: it follows from the owners.
    ancestor = hierarchy.common_ancestor(ModuleCall(path, index) for path, index in owners)
    return document.attribution_in(
        {
            "ancestor": None if ancestor is None else [ancestor.path, ancestor.index],
            "owners": owners,
            "confidence": folded[1],
            "evidence": folded[2],
            "reason": folded[3],
            "lost": folded[4],
            "layer": next(iter(folded[5:]), None),
        }
    )


def _unfold_absent(folded: Sequence[Sequence[Any]], paths: Sequence[str]) -> dict[str, str]:
    absent = zip(*folded, strict=True)
    return {
        paths[item] if isinstance(item, int) else document.text_in(item): document.text_in(reason)
        for item, reason in absent
    }
