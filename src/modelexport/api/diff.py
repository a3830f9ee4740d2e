"""Diff verb: opens two files, finds out where their modules are known from, and compares them.

    record of its own              RECORD     the modules that it says, as all verbs read it
    record of the other file alone OTHER      borrowed from there, node by node
    none, our keys on nodes        NODES      what is written on nodes
    none                           FILE       what each file says of its modules itself, or OTHER; NONE if nothing

A file whose record was made for an earlier graph borrows too, if the other one is up to date and has the same modules:
what nodes compute says more than their names. The comparison itself is in `inspect.diff`; here is what needs files,
records and lineage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, overload

from modelexport.api.opening import advise_attaching, read_hierarchy
from modelexport.api.package import Package, find_packages
from modelexport.errors import ModelMismatch, RecordMismatch, UserError
from modelexport.graph.file.external import external_data, is_external, tensors
from modelexport.graph.file.metadata import MODULE_KEY
from modelexport.graph.file.reading import have_equal_bytes
from modelexport.graph.file.tagged_file import STALE_NOTE, TaggedFile, open_tagged
from modelexport.graph.functions import Inlined
from modelexport.graph.outline import sketches_of
from modelexport.graph.related import are_comparable, knows_most_nodes, module_overlap
from modelexport.graph.soundness import ensure_sound
from modelexport.inspect.cost.totals import count
from modelexport.inspect.diff.differences import diff_equal_files, find_differences
from modelexport.inspect.diff.sides import ConstantStore, DiffSide, cut_part
from modelexport.inspect.package.pairs import PackagePair
from modelexport.lineage.descent import trace_lineage
from modelexport.record.hierarchy import ROOT, ROOT_NAME, ModuleCall
from modelexport.record.lineage import Lineage
from modelexport.record.provenance import FROM_FILE, Confidence, Origin, Provenance
from modelexport.record.results.cost import NodeCost
from modelexport.record.results.diff import Diff, Source
from modelexport.transform.fold.inlining import CallAttributions

# Files of more nodes have their cost counted only if that is asked for.
_COUNTED = 20_000


@overload
def diff(
    left: str | Path,
    right: str | Path,
    *,
    left_module: str | None = None,
    right_module: str | None = None,
    weights: bool = True,
    cost: bool | None = None,
) -> Diff | Any: ...
@overload
def diff(
    left: Package,
    right: Package,
    *,
    left_module: str | None = None,
    right_module: str | None = None,
    weights: bool = True,
    cost: bool | None = None,
) -> PackagePair[Diff]: ...
def diff(
    left: str | Path | Package,
    right: str | Path | Package,
    *,
    left_module: str | None = None,
    right_module: str | None = None,
    weights: bool = True,
    cost: bool | None = None,
) -> Diff | PackagePair[Diff]:
    """How two files differ, or two modules of them; or two packages, component by component.

    left_module   compare this module of the first file (`encoder.layer.3`, or one call: `block#2`)
    right_module  with this one of the second; the same as `left_module` if only that is given, all of it if empty
                  or `(model)`
    weights       read large weights, to see whether they differ and by how much
    cost          count what modules that differ take; if left out, of files that are not too large for it
    """
    if (packages := find_packages(left, right)) is not None:
        return _diff_packages(*packages, (left_module, right_module), weights=weights, cost=cost)
    # A file that is compared with itself is opened, indexed and unpacked once.
    first = open_tagged(Path(left))
    files = first, first if Path(left) == Path(right) else open_tagged(Path(right))
    for file in dict.fromkeys(files):
        ensure_sound(file.proto, file.graph, str(file.path))
    parts = _pair_modules(left_module, right_module)
    same = parts[0] == parts[1] and _are_equal(*files)
    before, after = _sides(files, parts, read_weights=weights and not same)
    if same:
        # Files of equal bytes have equal weights, unless these lie in another file that cannot be read.
        for tensor in filter(is_external, tensors(first.proto) if weights else ()):
            external_data(tensor, first.directory).raw()
        result = diff_equal_files(before, after)
        return replace(result, weights_read=weights, notes=tuple(_notes(result, files)))
    small = max(len(side.graph.nodes) for side in (before, after)) <= _COUNTED
    costs = (lambda: (_costs(before), _costs(after))) if (small if cost is None else cost) else None
    result = find_differences(before, after, lambda: _links(before, after, weights=weights), costs)
    _ensure_related(result, *files)
    notes = _notes(result, files)
    if cost is None and not small and not result.identical:
        notes.append(f"cost is not counted of more than {_COUNTED:,} nodes unless it is asked for (--cost)")
    return replace(result, weights_read=weights, notes=tuple(notes))


def _diff_packages(
    left: Package, right: Package, modules: tuple[str | None, str | None], *, weights: bool, cost: bool | None
) -> PackagePair[Diff]:
    """Modules are compared in the components that have nodes of both; of the others nothing is said."""
    from modelexport.api.package_reading import pair_packages

    parts = _pair_modules(*modules)
    both = [
        name
        for name in left
        if name in right
        and all(_has_nodes(package, name, part) for package, part in zip((left, right), parts, strict=True))
    ]
    if any(parts) and not both:
        raise UserError(
            f"no component of both packages has nodes of {' and '.join(dict.fromkeys(parts))}",
            "`modelexport analyze` shows which component has which module.",
        )
    only = both if any(parts) else None
    options: dict[str, Any] = {"left_module": modules[0], "right_module": modules[1], "weights": weights, "cost": cost}
    return pair_packages(left, right, lambda a, b: diff(a, b, **options), only)


def _pair_modules(left: str | None, right: str | None) -> tuple[str, str]:
    """What is compared on each side: one that is given alone is meant on both; empty for all of a file."""
    if left is None or right is None:
        return (left or right or "",) * 2
    return left, right


def _has_nodes(package: Package, component: str, module: str) -> bool:
    """Whether a component has nodes of a module, or of one call of it; UnknownName for what no component knows."""
    if _is_whole(module, None):
        return True
    known = package.provenance.hierarchy
    # A path may have a `#` of its own: what is a module is no call of one.
    path = module if known.path_of(module) is not None else ModuleCall.parse(module).path
    return component in package.provenance.components_of(path)


def _are_equal(file: TaggedFile, other: TaggedFile) -> bool:
    """One file, or a copy byte for byte with an equal record. Weights outside must be in the same folder."""
    if file is other:
        return True
    if file.directory != other.directory and any(map(is_external, tensors(file.proto))):
        return False
    return have_equal_bytes(file.path, other.path) and file.related_record == other.related_record


def _sides(files: tuple[TaggedFile, TaggedFile], parts: tuple[str, str], *, read_weights: bool) -> list[DiffSide]:
    """What is compared: two modules or two whole files; the same twice for a file and itself."""
    known: dict[tuple[int, Source, bool, str], DiffSide] = {}
    sides = []
    for file, (source, record), part in zip(files, _sources(files), parts, strict=True):
        key = id(file), source, record is None, part
        if key not in known:
            known[key] = _part(_compared(file, source, record, read_weights=read_weights), part, file)
        sides.append(known[key])
    return sides


def _own_record(file: TaggedFile) -> Provenance | None:
    """What a file says of the modules of its nodes, as all verbs read it; None if it says nothing of this graph."""
    try:
        return None if file.related_record is None else file.provenance
    except RecordMismatch:
        return None


def _sources(files: tuple[TaggedFile, TaggedFile]) -> list[tuple[Source, Provenance | None]]:
    records = [_own_record(file) for file in files]
    left, right = records
    if left is not None and right is not None and _have_same_tree(left, right):
        current = [file.is_up_to_date for file in files]
        records = [record if own or not any(current) else None for record, own in zip(records, current, strict=True)]
    if not any(records) and not any(map(_hints, files)):
        return _read_sources(files)
    lent = Source.OTHER if any(records) else Source.NONE
    return [(lent if record is None else Source.RECORD, record) for record in records]


def _read_sources(files: tuple[TaggedFile, TaggedFile]) -> list[tuple[Source, Provenance | None]]:
    """What two files without a record say themselves. One whose names are others has the modules of the other one."""
    records = [_read_modules(file) for file in files]
    left, right = records
    if left is not None and right is not None and not module_overlap(left.hierarchy, right.hierarchy).related:
        records = [left, None] if _known_share(left) >= _known_share(right) else [None, right]
    lent = Source.OTHER if any(records) else Source.NONE
    return [(lent if record is None else Source.FILE, record) for record in records]


def _read_modules(file: TaggedFile) -> Provenance | None:
    """What a file says of its modules itself; None if it says nothing, or has a record that says nothing of it."""
    record = None if file.is_recorded else read_hierarchy(file)
    return record if record is not None and len(record.hierarchy.modules) > 1 else None


def _known_share(record: Provenance) -> float:
    known = sum(entry.attribution.confidence > Confidence.FALLBACK for entry in record.nodes.values())
    return known / len(record.nodes) if record.nodes else 0.0


def _have_same_tree(left: Provenance, right: Provenance) -> bool:
    trees = (record.hierarchy.modules.items() for record in (left, right))
    classes, others = ({path: module.class_name for path, module in modules} for modules in trees)
    return classes == others


def _compared(file: TaggedFile, source: Source, record: Provenance | None, *, read_weights: bool) -> DiffSide:
    model = file.inlined
    flat = model.inlined
    calls = _hints(file) if record is None else _calls(record)
    if source is Source.NONE and calls:
        source = Source.NODES
    if record is None:
        calls |= _hinted(calls, flat)
    else:
        calls |= {key: str(call) for key, call in _put_in(record, flat.origins).items()}
    exporter, initializers = record or file.related_record, {} if record is None else record.initializers
    return DiffSide(
        path=str(file.path),
        file=file,
        graph=model.graph,
        model=model,
        constants=ConstantStore(file, model.graph, read_weights=read_weights),
        calls=calls,
        held={name: str(item.owners[0]) for name, item in initializers.items() if len(item.owners) == 1},
        hierarchy=None if record is None else record.hierarchy,
        source=source,
        exporter="" if exporter is None else exporter.origin.exporter,
        record=record,
    )


def _calls(record: Provenance) -> dict[str, str]:
    calls = ((key, entry.attribution.ancestor) for key, entry in record.nodes.items())
    return {key: str(call) for key, call in calls if call is not None}


def _put_in(record: Provenance, origins: Mapping[str, Sequence[str]]) -> dict[str, ModuleCall]:
    """A node of a function is one of each call of it, and belongs to that of its modules which the call is for."""
    calls, by_call = {}, CallAttributions(record)
    for key, (*outer, own) in origins.items():
        call = by_call.find(own, outer).ancestor
        if call is not None:
            calls[key] = call
    return calls


def _hinted(calls: Mapping[str, str], flat: Inlined) -> dict[str, str]:
    """What the innermost of a node and the calls around it says."""
    hints = {key: [calls[inner] for inner in reversed(keys) if inner in calls] for key, keys in flat.origins.items()}
    return {key: hint[0] for key, hint in hints.items() if hint}


def _hints(file: TaggedFile) -> dict[str, str]:
    """What nodes say themselves; else what an older record says of nodes of the same name, if it knows most of them."""
    nodes, record = file.graph.nodes, file.related_record
    written = {node.key: node.metadata[MODULE_KEY] for node in nodes if MODULE_KEY in node.metadata}
    if knows_most_nodes(written, file.graph) or record is None:
        return written
    known = {
        node.key: str(entry.attribution.ancestor)
        for node in nodes
        if (entry := record.nodes.get(node.key)) is not None
        and entry.op_type == node.op_type
        and entry.attribution.ancestor is not None
    }
    return known if knows_most_nodes(known, file.graph) else {}


def _part(side: DiffSide, module: str, file: TaggedFile) -> DiffSide:
    record = _own_record(file)
    if record is None and not file.is_recorded and not _is_whole(module, None):
        record = read_hierarchy(file)
    if _is_whole(module, record):
        return side
    if record is None:
        raise UserError(
            f"{side.path} has no record that says which of its nodes belong to {module!r}",
            "Tag it with `modelexport attach`, or carry its record over with `modelexport relink`.",
        )
    origins = side.model.inlined.origins
    within, ran_within = record.issued_within(module), record.ran_within(module)
    keys = {key for key, entry in record.nodes.items() if within(entry.attribution) and key not in origins}
    keys |= {key for key, call in _put_in(record, origins).items() if ran_within(call)}
    if not keys:
        raise UserError(f"{module!r} has no nodes in {side.path}", "Choose a module that `modelexport analyze` lists.")
    return replace(side, graph=cut_part(side.graph, keys), module=module)


def _is_whole(module: str, record: Provenance | None) -> bool:
    if module == ROOT_NAME and record is not None:
        return record.hierarchy.path_of(module) == ROOT
    return module in (ROOT, ROOT_NAME)


def _links(left: DiffSide, right: DiffSide, *, weights: bool) -> Lineage:
    if not weights:
        return trace_lineage(left.graph, right.graph)
    return trace_lineage(left.graph, right.graph, (sketches_of(left.file), sketches_of(right.file)))


def _costs(side: DiffSide) -> dict[str, NodeCost]:
    """Of nodes by key; a function costs what its calls do, and its nodes have no keys of their own there."""
    return dict(count(side.path, side.file, None, {}).by_key)


def _ensure_related(result: Diff, left: TaggedFile, right: TaggedFile) -> None:
    if are_comparable(result.alike, result.same_weights):
        return
    # Two trainings of one model, exported in two ways, may share neither nodes nor weights, but they share modules.
    trees = [None if (record := file.related_record) is None else record.hierarchy for file in (left, right)]
    whole = not (result.left.module or result.right.module)
    if whole and trees[0] is not None and trees[1] is not None and module_overlap(trees[0], trees[1]).related:
        return
    what = [f"{side.module} in {side.path}" if side.module else side.path for side in (result.left, result.right)]
    raise ModelMismatch(
        f"{what[0]} and {what[1]} have little in common: {100 * result.alike:.0f} % of their nodes and "
        f"{100 * result.same_weights:.0f} % of their weights",
        "Give two files of one model, or two modules of one kind.",
    )


def _notes(result: Diff, files: tuple[TaggedFile, TaggedFile]) -> list[str]:
    notes = []
    for side, other, file in zip((result.left, result.right), (result.right, result.left), files, strict=True):
        if side.source is Source.OTHER:
            damage = file.embedded.problem or file.sidecar.problem
            missing = "has no record of its own" if damage is None else f"has a record that cannot be read ({damage})"
            why = missing if _own_record(file) is None else "was changed after its record was made"
            notes.append(f"{side.path} {why}: its modules are those of {other.path}, node by node")
        elif side.source is Source.FILE:
            notes.append(advise_attaching(Origin(FROM_FILE, side.exporter), side.path))
        elif side.source is Source.RECORD and not file.is_up_to_date:
            notes.append(f"{side.path}: {STALE_NOTE}")
    if result.left.source is Source.NONE and result.right.source is Source.NONE:
        notes.append("neither file has a record: nodes are aligned by lineage alone, and modules are not known")
    # Two modules of one file: what is to be known of it is said once.
    return list(dict.fromkeys(notes))
