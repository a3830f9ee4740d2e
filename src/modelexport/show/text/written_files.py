"""What verbs that write files say when they are done, for people; for programs, see `show/data/results.py`.

`export`, `attach`, `extract`, `fold` and `flatten`:

    wrote bert.onnx (90.9 MB)
    288 nodes: exact 134 (46.5 %), strong 150 (52.1 %), inferred 4 (1.4 %)
    outputs equal PyTorch's (largest difference 3.6e-07)

`relink`, `run-tool` and `quantize`, with the lineage of the new file, and what speaks against it: nodes that nothing
explains, edges in another order, weights that moved.

    251 nodes from bert.onnx: kept 213, rewritten 1, fused 25 (from 68), split 12
    fused into 12 FusedMatMul, 12 BiasGelu, 1 SkipLayerNormalization
    attributions: exact 210 (83.7 %), strong 37 (14.7 %), inferred 4 (1.6 %)
    of 228 nodes before that work on the inputs, 228 live on
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from modelexport.errors import some_of
from modelexport.inspect.analyze import Tally
from modelexport.record.lineage import Consistency, Relation
from modelexport.record.provenance import Confidence
from modelexport.record.results import files
from modelexport.show.data.results import relations_of, tally_of
from modelexport.show.text.console import (
    bytes_text,
    counted,
    file_lines,
    note_lines,
    plain,
    seconds_line,
    share_text,
    table,
)
from modelexport.show.text.verification import verification_tables
from modelexport.show.text.verification_rows import Shown


def export_lines(result: files.ExportResult, *, verbose: bool = False) -> Iterator[Text]:
    yield from file_lines(result.files)
    tally = tally_of(result.provenance)
    yield plain(f"{counted(tally.total, 'node')}: {confidences_text(tally)}")
    if result.check is not None and result.check.nothing_finite and result.check.ok:
        names = some_of(result.check.nothing_finite)
        yield plain(
            f"not compared: {names} is NaN or infinite everywhere, in PyTorch and in the file. Give other inputs",
            "yellow",
        )
    elif result.check is not None and result.check.too_small and result.check.ok:
        names = some_of(result.check.too_small)
        yield plain(
            f"too small to tell: {names} is no larger than rounding errors of what it is computed from", "yellow"
        )
    elif result.check is not None and result.check.ok:
        yield plain(f"outputs equal PyTorch's (largest difference {result.check.max_abs_diff:.1e})", "green")
    elif result.check is not None:
        yield plain(f"not as PyTorch: {result.check.message}", "red")
    yield from unmet_lines(result.unmet)
    yield from note_lines(result.notes)
    if verbose:
        yield seconds_line(result.seconds)


def filling_lines(result: files.FillResult) -> Iterator[Text]:
    yield from file_lines(result.files)
    made = f", {result.made} of them cast, transposed or joined" if result.made else ""
    yield plain(f"{counted(result.filled, 'weight')} filled ({bytes_text(result.nbytes)}){made}")
    yield from note_lines(result.notes)


def unmet_lines(unmet: Iterable[files.Unmet]) -> Iterator[Text]:
    """What was asked for, and what the file is instead."""
    for item in unmet:
        yield plain(f"not as asked: {item.asked}: {item.done}", "bold red")


def package_export_lines(package: files.PackageExport, *, verbose: bool = False) -> Iterator[Text]:
    """Component by component; notes that all of them have are said once."""
    notes: list[str] = []
    for component in package.info.components:
        result = package.components[component.name]
        cache = f", {counted(len(component.cache), 'cache tensor')}" if component.cache else ""
        yield plain(f"{component.name}{cache}", "bold")
        yield from export_lines(replace(result, notes=()), verbose=verbose)
        notes += [note for note in result.notes if note not in notes]
    for absent in package.info.absent:
        yield plain(f"in no file: {absent.path or '(model)'} ({absent.class_name}): {absent.reason}", "yellow")
    yield from note_lines(notes)


def confidences_text(tally: Tally) -> str:
    """Most confident first; levels without a node are left out."""
    counts = [(level.label, tally.by_confidence[level]) for level in sorted(Confidence, reverse=True)]
    return ", ".join(f"{label} {count} ({share_text(tally.share(count))})" for label, count in counts if count)


_DISTINCTIVE = 40.0  # decibels that equal numbers have at least, whatever their size
_FROM = {
    files.Feed.GIVEN: "what the module was given",
    files.Feed.RUN: "a tensor of the model's run that the module was not given",
    files.Feed.FILE: "a tensor of the whole file's: PyTorch has none like it",
}


def extraction_lines(extraction: files.Extraction, *, verbose: bool = False) -> Iterator[Text]:
    """The interface of the new file is listed, because whoever runs it must feed it."""
    yield from file_lines(extraction.files)
    nodes = len(extraction.provenance.nodes)
    parts = {"shared with modules outside": extraction.shared, "taken along": extraction.along}
    of_these = " and ".join(f"{number} {what}" for what, number in parts.items() if number)
    weights = f"{bytes_text(extraction.weights)} of weights"
    named = f"{extraction.class_name}: " if extraction.class_name else ""  # a file without a record may not tell it
    yield plain(f"{named}{counted(nodes, 'node')}{of_these and f', {of_these}'}; {weights}")
    for word, ends in (("in", extraction.inputs), ("out", extraction.outputs)):
        for end in ends:
            shape = ", ".join(str(dim) or "?" for dim in end.shape)
            yield plain(f"{word:<4}{end.name}  {end.dtype}[{shape}]")
    yield from note_lines(extraction.notes)
    if extraction.check is not None:
        yield from _check_lines(extraction.check, verbose=verbose)
    if verbose:
        yield seconds_line(extraction.seconds)


def _check_lines(check: files.ExtractionCheck, *, verbose: bool) -> Iterator[Text]:
    """Every output with -v; without, those that differ and those that the tolerance says little of."""
    for comparison in check.outputs:
        apart = comparison.difference
        if verbose or not apart.agrees:
            figures = f"largest difference {apart.max_abs:.1e} (relative {apart.max_rel:.1e}), SQNR {apart.sqnr:.0f} dB"
            order = ", in another order of axes" if comparison.reordered else ""
            line = f"{comparison.name}: {figures}, against {_against(comparison.against)}{order}"
            yield plain(line, "" if apart.agrees else "red")
        if apart.agrees and apart.sqnr < _DISTINCTIVE:
            small = f"so small that the tolerance tells little (SQNR {apart.sqnr:.0f} dB): try a smaller --tolerance"
            yield plain(f"note: the numbers of {comparison.name} are {small}", "yellow")
    for name, feed in check.fed.items():
        if verbose or feed is not files.Feed.GIVEN:
            yield plain(f"{name} was fed {_FROM[feed]}", "dim")
    yield plain(_verdict(check), "green" if check.ok else "red" if check.runs or check.outputs else "yellow")


def _against(word: str) -> str:
    return {files.RETURNED: "what the module returned", "run": "a value of the model's run"}.get(word, "the whole file")


def _verdict(check: files.ExtractionCheck) -> str:
    """What the file was really held against: parts of a module may be compared with the run or with the whole file."""
    if check.ok:
        return _agreement(check)
    if not check.runs and not check.outputs:
        return "not compared: the module does not run for these inputs; give inputs that take it"
    if not check.outputs:
        return f"not as the module of {check.reference}: what that was given does not fit what the file takes"
    if check.whole and not any(comparison.against == files.RETURNED for comparison in check.outputs):
        return f"not shown to equal the module of {check.reference}: nothing that the module returned is in the file"
    if check.lost and all(comparison.difference.agrees for comparison in check.outputs):
        lost = counted(check.lost, "tensor")
        return f"not as the module of {check.reference}: {lost} that it returned the whole file makes elsewhere"
    absolute = f"{check.tolerance:g} + " if check.chosen else ""
    limit = f"allowed: {absolute}{check.tolerance:g} × (element + tensor's root mean square)"
    return f"not as the module of {check.reference}: largest difference {check.max_abs:.1e} ({limit})"


def _agreement(check: files.ExtractionCheck) -> str:
    if any(comparison.difference.too_small for comparison in check.outputs):
        return f"too small to tell: no larger than rounding errors of what it is computed from ({check.reference})"
    if check.whole:
        order = ", in another order of axes" if any(comparison.reordered for comparison in check.outputs) else ""
        return f"equals the module of {check.reference}{order} (largest difference {check.max_abs:.1e})"
    held = some_of(sorted({_against(comparison.against) for comparison in check.outputs}))
    return f"equals {held} (largest difference {check.max_abs:.1e}; {check.reference})"


_OUTSIDE = "constants that are shared or differ, or what others need before it is done"

_CLASSLESS = "a module of unknown class"  # in a file without a record


def folding_lines(result: files.FoldResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """A class that could not be folded is a note; one that need not be is counted."""
    yield from file_lines(result.files)
    folding = result.folding
    if not folding.functions:
        yield plain("no class of modules is called twice with more than one node: the file is as it was", "yellow")
    else:
        change = f"{counted(folding.before, 'node')} before, {folding.after} after ({folding.share:.1%})"
        yield plain(f"{change}, in the main graph and {counted(len(folding.functions), 'function')}")
        shown = table("", "function", "class", "calls", "nodes", "modules", right=("calls", "nodes"))
        for function in folding.functions:
            modules = some_of(function.modules, len(function.modules) if verbose else 2)
            counts = str(function.calls), str(function.nodes)
            shown.add_row(plain(function.name, "cyan"), plain(function.class_name), *counts, plain(modules))
        yield shown
    for name, count in folding.outside.items():
        stayed = f"{counted(count, 'node')} of {name or _CLASSLESS} stayed outside of its function"
        yield plain(f"note: {stayed}: {_OUTSIDE}", "yellow")
    yield from _unfolded(folding, verbose=verbose)
    if folding.note:
        yield plain(f"note: {folding.note}", "yellow")
    yield from note_lines(result.notes)


def _unfolded(folding: files.Folding, *, verbose: bool) -> Iterator[RenderableType]:
    """A class with one call or one node is left out on purpose; any other could not be folded, which is news."""
    for left in folding.unfolded:
        if verbose or not left.is_usual:
            text = f"{counted(left.calls, 'call')} of {left.class_name or _CLASSLESS} not folded: {left.reason}"
            yield plain(text, "dim") if left.is_usual else plain(f"note: {text}", "yellow")
    usual = {left.class_name for left in folding.unfolded if left.is_usual}
    if usual and not verbose:
        several = f"{len(usual)} class{'es' * (len(usual) > 1)}"
        yield plain(f"{several} with a single call or a single node not folded; -v lists them", "dim")


def flattening_lines(result: files.FlattenResult) -> Iterator[RenderableType]:
    """Whether the file is exactly what it was before `fold`, or merely computes the same."""
    yield from file_lines(result.files)
    flattening = result.flattening
    counts = f"{counted(flattening.before, 'node')} before, {flattening.after} after"
    if flattening.note:
        yield plain(f"note: {flattening.note}; nodes and values have names that are made up", "yellow")
    if not flattening.inlined and not flattening.kept:
        yield plain("there are no functions in it: the file is as it was", "yellow")
    elif flattening.exact:
        yield plain(f"{counts}: exactly the graph that was folded")
    else:
        yield plain(f"{counts}: {counted(len(flattening.inlined), 'function')} put in the place of calls")
    for name, reason in flattening.kept.items():
        yield plain(f"note: {name} is still a function: {reason}", "yellow")
    yield from note_lines(result.notes)


_ASK_VERIFY = "`modelexport verify` holds what was found against values."


def lineage_lines(result: files.RelinkResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """A file that was made from something else is said first, and nothing of its lineage is."""
    if not result.related:
        why = result.lineage.overlap if result.lineage.nodes else "it has no nodes"
        yield plain(f"{result.after} was not made from {result.before}: {why}", "bold red")
        yield plain("Nothing was written. Give the tagged file that it was made from.")
        return
    yield from file_lines(result.files)
    for tool in result.idle:
        yield plain(f"{tool} changed nothing: graph, weights and shapes are as they were before it", "yellow")
    tally = tally_of(result.provenance)
    relations = ", ".join(_related(result, relation, count) for relation, count in relations_of(result).items())
    yield plain(f"{counted(tally.total, 'node')} from {result.before}: {relations}")
    if made := _count_fused(result):
        yield plain(f"fused into {', '.join(f'{count} {operator}' for operator, count in made.items())}")
    yield plain(f"attributions: {confidences_text(tally)}")
    consistency = result.lineage.consistency
    fates = ", ".join(_fates(consistency))
    yield plain(f"of {counted(consistency.nodes, 'node')} before that work on the inputs, {fates}", "dim")
    yield from (plain(line, "yellow") for line in _doubts(consistency))
    yield from unmet_lines(result.unmet)
    yield from note_lines(result.notes)
    if result.differing:
        weights = f"{counted(len(result.differing), 'weight')} with other numbers under the same name"
        yield plain(f"another version of the model: {weights} ({some_of(result.differing)})", "bold red")
    if verbose:
        yield from _changed(result)
        yield seconds_line(result.seconds)


def _related(result: files.RelinkResult, relation: Relation, count: int) -> str:
    """Of several nodes that became one, how many there were."""
    sources = {key for link in result.lineage.nodes.values() if link.relation is relation for key in link.sources}
    # Only these are made of more nodes than there are now.
    several = relation in (Relation.FUSED, Relation.SHARED)
    return f"{relation} {count} (from {len(sources)})" if several else f"{relation} {count}"


def _count_fused(result: files.RelinkResult) -> Mapping[str, int]:
    """Operators that do the work of several nodes before: {"SkipSimplifiedLayerNormalization": 4, "QuickGelu": 2}."""
    fused = (key for key, link in result.lineage.nodes.items() if link.relation is Relation.FUSED)
    counts = Counter(result.provenance.nodes[key].op_type for key in fused)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _changed(result: files.RelinkResult) -> Iterator[RenderableType]:
    changed = {key: link for key, link in result.lineage.nodes.items() if link.relation is not Relation.KEPT}
    if not changed:
        return
    shown = table("", "node", "operator", "relation", "sources", "link")
    for key, link in changed.items():
        operator = plain(result.provenance.nodes[key].op_type, "cyan")
        shown.add_row(plain(key), operator, *map(plain, (str(link), ", ".join(link.sources), link.confidence.label)))
    yield shown


def _fates(consistency: Consistency) -> Iterator[str]:
    folded, removed, unexplained = consistency.folded, consistency.removed, consistency.unexplained
    yield f"{consistency.covered} live on"
    if folded:
        yield f"{len(folded)} became constants"
    if removed:
        yield f"{len(removed)} {'was' if len(removed) == 1 else 'were'} removed ({some_of(removed)})"
    if unexplained:
        yield f"{len(unexplained)} {'is' if len(unexplained) == 1 else 'are'} unexplained"


def _doubts(consistency: Consistency) -> Iterator[str]:
    """What speaks against a lineage, with what it may mean and what to do."""
    if consistency.unexplained:
        yield (
            f"note: no node after does the work of {some_of(consistency.unexplained)}, and nothing shows that it could "
            f"be left out. The tool changed what is computed there, or this was not found; {_ASK_VERIFY}"
        )
    if consistency.disorder:
        edges = [f"{reader} reads {maker}" for maker, reader in consistency.disorder]
        yield (
            f"note: in another order than before: {some_of(edges)}. Going by what they were traced back to, it was the "
            f"other way round. The tool moved them past each other, or a source is wrong; {_ASK_VERIFY}"
        )
    if consistency.strayed:
        yield (
            f"note: weights that were read elsewhere before are read by {some_of(consistency.strayed)}: none of the "
            f"nodes that this was traced back to read them. Its module may be wrong; {_ASK_VERIFY}"
        )


def quantization_lines(result: files.QuantizeResult, *, verbose: bool = False) -> Iterator[RenderableType]:
    """The lineage first; with --report, what each module lost."""
    yield from lineage_lines(result.relinked, verbose=verbose)
    if result.excluded:
        yield plain(f"left in float as asked: {counted(len(result.excluded), 'node')}")
    if result.included is not None:
        yield plain(f"to be quantized, and nothing else: {counted(len(result.included), 'node')}")
    yield from note_lines(result.notes)
    if result.report is not None:
        yield plain("")
        yield from verification_tables(result.report, Shown(by_loss=True, verbose=verbose))


def package_change_lines(
    change: files.PackageChange[Any], view: Callable[..., Iterator[RenderableType]], *, verbose: bool = False
) -> Iterator[RenderableType]:
    """Component by component, each as `view` shows a file."""
    for name, result in change.components.items():
        yield plain(name, "bold")
        yield from view(result, verbose=verbose)
    if change.copied:
        yield plain(f"copied as before: {', '.join(change.copied)}")


def tool_table(tools: Iterable[files.ToolInfo]) -> RenderableType:
    """A row for each tool, for `run-tool --list`."""
    shown = table("", "tool", "does", "can fuse into", "package", "installed")
    for tool in tools:
        installed = "yes" if tool.installed else f"no: pip install 'modelexport[{tool.extra}]'"
        shown.add_row(*map(plain, (tool.call, tool.does, ", ".join(tool.makes), tool.package, installed)))
    return shown
