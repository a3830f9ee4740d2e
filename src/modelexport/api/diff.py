"""Diff verb: opens two files, finds out where their modules are known from, and compares them.

    record of this very graph      RECORD     the modules that it says
    record of an earlier graph     RELINKED   the modules that lineage carries over
    record of the other file alone OTHER      borrowed from there, node by node
    none, our keys on nodes        NODES      what is written on nodes
    none                           FILE       what each file says of its modules itself, or OTHER; NONE if nothing

The comparison itself is in `inspect.diff`; here is what needs files, records and lineage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from modelexport.api.opening import read_hierarchy
from modelexport.api.relink import relink_graph
from modelexport.errors import ModelMismatch, UserError
from modelexport.graph.file.external import is_external, tensors
from modelexport.graph.file.metadata import MODULE_KEY
from modelexport.graph.file.reading import have_equal_bytes, with_small_external_data
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged, outlined_ancestor
from modelexport.graph.functions import Inlined
from modelexport.graph.outline import sketches_of
from modelexport.graph.related import are_comparable, module_overlap
from modelexport.graph.soundness import ensure_sound
from modelexport.inspect.cost.totals import count
from modelexport.inspect.diff.differences import diff_equal_files, find_differences
from modelexport.inspect.diff.sides import ConstantStore, DiffSide, cut_part
from modelexport.lineage.descent import trace_lineage
from modelexport.record.file_source import FROM_FILE, advise_attaching
from modelexport.record.hierarchy import ROOT, ROOT_NAME, ModuleCall
from modelexport.record.lineage import Link
from modelexport.record.provenance import Confidence, Origin, Provenance
from modelexport.record.results.cost import NodeCost
from modelexport.record.results.diff import Diff, Source
from modelexport.transform.fold.inlining import narrow_attribution

# Files of more nodes have their cost counted only if that is asked for.
_COUNTED = 20_000
# The share of its nodes that a record must know by name to be believed, and that must say themselves where they belong.
_KNOWN = 0.5


def diff(
    left: str | Path,
    right: str | Path,
    *,
    left_module: str | None = None,
    right_module: str | None = None,
    weights: bool = True,
    cost: bool | None = None,
) -> Diff:
    """How two files differ, or two modules of them.

    left_module   compare this module of the first file (`encoder.layer.3`, or one call: `block#2`)
    right_module  with this one of the second; the same as `left_module` if only that is given, all of it if empty
                  or `(model)`
    weights       read large weights, to see whether they differ and by how much
    cost          count what modules that differ take; if left out, of files that are not too large for it
    """
    # A file that is compared with itself is opened, indexed and unpacked once.
    first = open_tagged(Path(left))
    files = first, first if Path(left) == Path(right) else open_tagged(Path(right))
    for file in dict.fromkeys(files):
        ensure_sound(file.proto, file.graph, str(file.path))
    parts = left_module or "", right_module or ""
    if left_module is None or right_module is None:
        parts = (left_module or right_module or "",) * 2
    same = parts[0] == parts[1] and _are_equal(*files)
    before, after = _sides(files, parts, read_weights=weights and not same)
    if same:
        result = diff_equal_files(before, after)
        return replace(result, weights_read=weights, notes=tuple(_notes(result)))
    small = max(len(side.graph.nodes) for side in (before, after)) <= _COUNTED
    costs = (lambda: (_costs(before), _costs(after))) if (small if cost is None else cost) else None
    result = find_differences(before, after, lambda: _links(before, after, weights=weights), costs)
    _ensure_related(result, *files)
    notes = _notes(result)
    if cost is None and not small and not result.identical:
        notes.append(f"cost is not counted of more than {_COUNTED:,} nodes unless it is asked for (--cost)")
    return replace(result, weights_read=weights, notes=tuple(notes))


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
    for file, (source, record), part in zip(files, _sources(*files), parts, strict=True):
        key = id(file), source, record is None, part
        if key not in known:
            known[key] = _part(_compared(file, source, record, read_weights=read_weights), part, file)
        sides.append(known[key])
    return sides


def _current_record(file: TaggedFile) -> Provenance | None:
    """What a file says of the modules of its nodes, if that was made for this graph."""
    return file.related_record if file.related_record is not None and file.is_up_to_date else None


def _stale_record(file: TaggedFile) -> Provenance | None:
    """The same, made for the graph before a tool changed it."""
    return file.related_record if file.related_record is not None and not file.is_up_to_date else None


def _sources(
    left: TaggedFile, right: TaggedFile
) -> tuple[tuple[Source, Provenance | None], tuple[Source, Provenance | None]]:
    record, other = _current_record(left), _current_record(right)
    # Relinking is not needed where the other record names the same modules: it is borrowed instead.
    if record is not None and other is None and _has_own_tree(right, record):
        other = _relinked(right)
    if other is not None and record is None and _has_own_tree(left, other):
        record = _relinked(left)
    if record is None and other is None:
        record = _relinked(left)
        other = _relinked(right) if record is None else None
    if record is None and other is None and not (_hints(left) or _hints(right)):
        return _read_sources(left, right)
    own = [(Source.RELINKED if _current_record(file) is None else Source.RECORD) for file in (left, right)]
    lent = Source.NONE if record is None and other is None else Source.OTHER
    return (own[0] if record else lent, record), (own[1] if other else lent, other)


def _read_sources(
    left: TaggedFile, right: TaggedFile
) -> tuple[tuple[Source, Provenance | None], tuple[Source, Provenance | None]]:
    """What two files without a record say themselves. One whose names are others has the modules of the other one."""
    records = [_read_modules(file) for file in (left, right)]
    trees = [None if record is None else record.hierarchy for record in records]
    if trees[0] is not None and trees[1] is not None and module_overlap(trees[0], trees[1]).related:
        return (Source.FILE, records[0]), (Source.FILE, records[1])
    if records[0] is None and records[1] is None:
        return (Source.NONE, None), (Source.NONE, None)
    if records[1] is None or (records[0] is not None and _known_share(records[0]) >= _known_share(records[1])):
        return (Source.FILE, records[0]), (Source.OTHER, None)
    return (Source.OTHER, None), (Source.FILE, records[1])


def _read_modules(file: TaggedFile) -> Provenance | None:
    """What a file says of its modules itself; None if it says nothing."""
    record = read_hierarchy(file)
    return record if len(record.hierarchy.modules) > 1 else None


def _known_share(record: Provenance) -> float:
    known = sum(entry.attribution.confidence > Confidence.FALLBACK for entry in record.nodes.values())
    return known / len(record.nodes) if record.nodes else 0.0


def _has_own_tree(file: TaggedFile, other: Provenance) -> bool:
    """Whether a file's record speaks of other modules than that of the other file."""
    if file.related_record is None:
        return False
    trees = (file.related_record.hierarchy, other.hierarchy)
    own, lent = ({path: module.class_name for path, module in tree.modules.items()} for tree in trees)
    return own != lent


def _relinked(file: TaggedFile) -> Provenance | None:
    """The record for the graph that a tool made of the one that it was made for."""
    if _stale_record(file) is None or file.outline is None:
        return None
    relinked = relink_graph(outlined_ancestor(file), file, "diff")
    return relinked.provenance if relinked.related else None


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
        holdings=ConstantStore(file, model.graph, read_weights=read_weights),
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
    calls = {}
    for key, around in origins.items():
        *outer, own = map(record.recorded, around)
        call = narrow_attribution(own, outer, record.hierarchy).ancestor
        if call is not None:
            calls[key] = call
    return calls


def _hinted(calls: Mapping[str, str], flat: Inlined) -> dict[str, str]:
    """What the innermost of a node and the calls around it says."""
    hints = {key: [calls[inner] for inner in reversed(keys) if inner in calls] for key, keys in flat.origins.items()}
    return {key: hint[0] for key, hint in hints.items() if hint}


def _hints(file: TaggedFile) -> dict[str, str]:
    """What nodes say themselves; else what an older record says of nodes of the same name, if it knows most of them."""
    nodes, stale = file.graph.nodes, _stale_record(file)
    written = {node.key: node.metadata[MODULE_KEY] for node in nodes if MODULE_KEY in node.metadata}
    if len(written) >= _KNOWN * len(nodes) or stale is None:
        return written
    known = {
        node.key: str(entry.attribution.ancestor)
        for node in nodes
        if (entry := stale.nodes.get(node.key)) is not None
        and entry.op_type == node.op_type
        and entry.attribution.ancestor is not None
    }
    return known if len(known) >= _KNOWN * len(nodes) else {}


def _part(side: DiffSide, module: str, file: TaggedFile) -> DiffSide:
    record = _current_record(file)
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


def _links(left: DiffSide, right: DiffSide, *, weights: bool) -> Mapping[str, Link]:
    if not weights:
        return trace_lineage(left.graph, right.graph).nodes
    return trace_lineage(left.graph, right.graph, (sketches_of(left.file), sketches_of(right.file))).nodes


def _costs(side: DiffSide) -> dict[str, NodeCost]:
    """Of nodes by key; a function costs what its calls do, and its nodes have no keys of their own there."""
    return dict(
        count(side.path, with_small_external_data(side.file), side.file.graph, None, {}, side.model.inlined).by_key
    )


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


def _notes(result: Diff) -> list[str]:
    notes = []
    for side, other in ((result.left, result.right), (result.right, result.left)):
        if side.source is Source.OTHER:
            notes.append(f"{side.path} has no record of its own: its modules are those of {other.path}, node by node")
        elif side.source is Source.FILE:
            notes.append(advise_attaching(Origin(FROM_FILE, side.exporter), side.path))
        elif side.source is Source.RELINKED:
            notes.append(f"{side.path} was changed after its record was made: its modules are found by lineage")
    if result.left.source is Source.NONE and result.right.source is Source.NONE:
        notes.append("neither file has a record: nodes are aligned by lineage alone, and modules are not known")
    return notes
