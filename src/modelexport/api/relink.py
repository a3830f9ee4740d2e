"""Relink: carry the record of a tagged file to the file that a tool made of it.

    before   MatMul (fc), Add (fc)   ─► tool ─►   after   FusedGemm: fc

Steps: find the ancestor (the tagged file, or the outline of it inside of the made one), trace every node back to it by
lineage, inherit the attributions, and refuse files that were not made from it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from modelexport.api.environment import Clock, Progress
from modelexport.api.opening import note_source, open_file
from modelexport.api.options import parse_embedding
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.attribute.resolve import explain_absent_modules
from modelexport.errors import FileUnreadable
from modelexport.graph.file.tagged_file import (
    Ancestor,
    TaggedFile,
    find_ancestor,
    open_tagged,
    outlined_ancestor,
    skip_unreadable,
)
from modelexport.graph.file.writing import ensure_model_target
from modelexport.graph.outline import digested, sketches_like, sketches_of
from modelexport.graph.related import WeightComparison, is_made_from
from modelexport.graph.soundness import ensure_sound
from modelexport.lineage.descent import trace_lineage
from modelexport.lineage.inherit import inherit_record
from modelexport.record.provenance import Provenance
from modelexport.record.results.files import RelinkResult


def relink(  # noqa: PLR0913 - the keywords are the command line's options
    after: str | Path,
    output: str | Path | None = None,
    *,
    before: str | Path | None = None,
    tool: str = "",
    embed: str = "full",
    names: str = "torch",
    strip_exporter_metadata: bool = False,
    progress: Progress | None = None,
) -> RelinkResult:
    """Find out which module each node of a file belongs to that a tool made of a tagged one.

    output  where to write the file with its new record; nothing is written if it is left out
    before  the tagged file; if it is left out, what is planted in `after` takes its place
    tool    who made `after`, for the evidence
    """
    embedding = parse_embedding(embed, names, strip_exporter_metadata)
    target = None if output is None else Path(output)
    if target is not None:
        ensure_model_target(target)
    clock = Clock(progress)
    with clock.step("read"):
        made = open_tagged(Path(after))
        ensure_sound(made.proto, made.graph, str(after))
        tagged = None if before is None else open_file(Path(before))
        ancestor = outlined_ancestor(made) if tagged is None else find_ancestor(tagged)
    if target is not None:
        ensure_apart(target, *(Path(path) for path in (after, before) if path is not None))
    with clock.step("link"):
        result = relink_graph(ancestor, made, tool or "relink")
        result = replace(result, notes=() if tagged is None else note_source(tagged))
    written: tuple[Path, ...] = ()
    if target is not None and result.related:
        with clock.step("write"):
            saved = write_tagged(made, result.provenance, target, embedding)
            written, result = saved.files, replace(result, provenance=saved.provenance)
    return replace(result, after=str(after), path=target if written else None, files=written, seconds=clock.seconds)


def relink_graph(ancestor: Ancestor, made: TaggedFile, tool: str) -> RelinkResult:
    """The same in memory: lineage, then the attributions that nodes inherit along it, then whether it is of that file.

    Sketches (shape, type, a few numbers of each weight) tell weights that were renamed, without reading them all.
    """
    graph = made.graph
    before = (ancestor.sketches(name) for name in ancestor.graph.initializers)
    try:
        sketches = sketches_like(made, before)
    except FileUnreadable:  # of those weights, and others may be there
        sketches = sketches_of(made)
    sketches = skip_unreadable(sketches)
    lineage = trace_lineage(ancestor.graph, digested(graph), (ancestor.sketches, sketches))
    record = inherit_record(ancestor.record, lineage, graph, tool)
    record = replace(record, absent=_explain_absent(record, ancestor.record))
    weights = WeightComparison(ancestor.graph, graph, (ancestor.sketches, sketches), lineage)
    related = is_made_from(graph, ancestor.graph, lineage, weights.share)
    return RelinkResult(None, (), ancestor.name, record, lineage, related, weights.differing if related else ())


def _explain_absent(record: Provenance, before: Provenance) -> dict[str, str]:
    """Why modules have no node: what was so before keeps its reason, and what the tool removed gets one."""
    owned = {call.path for entry in record.nodes.values() for call in entry.attribution.owners}
    owned_before = {call.path for entry in before.nodes.values() for call in entry.attribution.owners}
    still_absent = {path: reason for path, reason in before.absent.items() if path not in owned}
    return {**explain_absent_modules(record.hierarchy, owned, owned_before), **still_absent}
