"""Checks and comparisons for people: `validate`, `compare`, `strategies`.

bert.onnx: 9 checks, nothing wrong

module                                                             nodes  removed  added
encoder.layer.0.attention.output BertSelfOutput and 11 more alike  1 → 1  Add      SkipLayerNormalization

strategy           nodes    share  exact  strong  inferred  same  less  other  seconds
enhanced_semantic    288  100.0 %      0     284         4   287     1      0     0.09

Findings and differences can be thousands, and are mostly alike: the first of a kind is shown and the others are
counted, unless -v asks for all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.inspect.analyze import FileFacts, ModuleFacts
from modelexport.inspect.compare import Comparison, ModuleDifference, Scores
from modelexport.inspect.validate import Finding, Severity, Validation
from modelexport.record.provenance import Confidence
from modelexport.show.text.console import (
    bytes_text,
    count_text,
    counted,
    modules_text,
    note_lines,
    operators_text,
    plain,
    share_text,
    table,
)

_LISTED = 10  # findings of one kind
_ROWS = 1000  # modules of one side; a table of all of a hundred thousand would take minutes
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow"}


def validation_tables(validation: Validation, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Errors and warnings with one code follow each other; after ten of a kind the rest is counted."""
    if validation.written:
        yield plain(f"rewrote the keys of {counted(validation.repaired, 'node')} in {validation.written}")
    for _, group in groupby(validation.findings, key=lambda finding: finding.code):
        findings = list(group)
        shown = findings if verbose else findings[:_LISTED]
        yield from map(_line, shown)
        if len(findings) > len(shown):
            yield Text(f"  … and {len(findings) - len(shown)} more of this kind (--verbose)", "dim")
    if verbose:
        yield plain("checks: " + ", ".join(validation.checks), "dim")
    errors = len(validation.errors)
    if validation.findings:
        counts = f"{counted(errors, 'error')}, {counted(len(validation.findings) - errors, 'warning')}"
        yield plain(f"{validation.path}: {counts}", "red" if errors else "yellow")
    else:
        yield plain(f"{validation.path}: {len(validation.checks)} checks, nothing wrong", "green")


def _line(finding: Finding) -> Text:
    line = Text(f"{finding.severity.value} ", _STYLES[finding.severity]).append(f"{finding.code} ", "bold")
    if finding.subject:
        line.append_text(plain(f"{finding.subject}: ", "cyan"))
    return line.append_text(plain(finding.message))


def comparison_tables(comparison: Comparison, *, verbose: bool = False) -> Iterator[RenderableType]:
    """Without differences, the two heads and one line are all there is."""
    yield _head("a", comparison.a, comparison.nodes.a, comparison.totals_a)
    yield _head("b", comparison.b, comparison.nodes.b, comparison.totals_b)
    if comparison.identical:
        yield Text("No differences.", "green")
        return
    if comparison.differences:
        yield from (Text(), _differences(comparison, verbose))
    yield from _only("Modules only in a", comparison.only_a)
    yield from _only("Modules only in b", comparison.only_b)
    if comparison.unattributed:
        counts = ", ".join(f"{name} {pair.a} → {pair.b}" for name, pair in comparison.unattributed.items())
        yield plain(f"nodes without a module: {counts}")
    for kind, names in (("inputs", comparison.inputs), ("outputs", comparison.outputs)):
        if names:
            yield plain(f"{kind}: {', '.join(names)}")
    yield Text()
    yield Text(_sum_up(comparison), "bold")


def _head(side: str, file: FileFacts, nodes: int, totals: ModuleFacts | None) -> Text:
    weights = "" if totals is None else f", {bytes_text(totals.total.bytes)} of weights"
    facts = f"{file.path} ({file.exporter}, {counted(nodes, 'node')}{weights})"
    return Text(f"{side}  ", "bold").append_text(plain(facts))


def _differences(comparison: Comparison, verbose: bool) -> Table:
    """Modules that differ in the same way become one row: two exporters differ alike in every layer."""
    shown = table("Differences", "module", "nodes", "removed", "added", "also", right=("nodes",))
    alike: dict[tuple[tuple[str, ...], str], list[ModuleDifference]] = {}
    for difference in comparison.differences:
        alike.setdefault((_cells(difference), difference.path if verbose else ""), []).append(difference)
    for ((nodes, removed, added, also), _), group in alike.items():
        name = plain(group[0].path or "(model)").append_text(plain(f" {group[0].class_a}", "cyan"))
        if len(group) > 1:
            name.append(f" and {len(group) - 1} more alike", "dim")
        shown.add_row(name, nodes, plain(removed, "red"), plain(added, "green"), plain(also, "yellow"))
    return shown


def _cells(difference: ModuleDifference) -> tuple[str, str, str, str]:
    nodes = f"{difference.nodes.a} → {difference.nodes.b}"
    fewer = {name: pair.a - pair.b for name, pair in difference.operators.items() if pair.a > pair.b}
    more = {name: pair.b - pair.a for name, pair in difference.operators.items() if pair.b > pair.a}
    return nodes, operators_text(fewer, 8), operators_text(more, 8), ", ".join(_also(difference))


def _also(difference: ModuleDifference) -> Iterator[str]:
    """The class says more than the tag, and the number of parameters more than their size: then only that is said."""
    if difference.class_a != difference.class_b:
        yield f"class {difference.class_a} → {difference.class_b}"
    elif difference.tag_a != difference.tag_b:
        yield f"tag {difference.tag_a or 'none'} → {difference.tag_b or 'none'}"
    if difference.changed:
        yield f"{len(difference.changed)} changed in attributes or inputs"
    if difference.parameters.a != difference.parameters.b:
        yield f"parameters {count_text(difference.parameters.a)} → {count_text(difference.parameters.b)}"
    elif difference.bytes.a != difference.bytes.b:
        yield f"size {bytes_text(difference.bytes.a)} → {bytes_text(difference.bytes.b)}"


def _only(title: str, modules: Sequence[ModuleFacts]) -> Iterator[RenderableType]:
    """A module that one side lacks has nothing to be compared with, so that it is listed with what it has."""
    if modules:
        yield Text()
        shown = table(title, "module", "class", "nodes", "params", right=("nodes", "params"))
        for module in modules[:_ROWS]:
            amounts = str(module.own.nodes), count_text(module.own.parameters)
            shown.add_row(plain(module.path or "(model)"), plain(module.class_name, "cyan"), *amounts)
        yield shown
        if len(modules) > _ROWS:
            yield Text(f"  … and {len(modules) - _ROWS} more (--format json)", "dim")


def _sum_up(comparison: Comparison) -> str:
    """Removed and added are counted by operator: one that moved inside of a module is neither.

    All nodes of a module that one side lacks are removed or added.
    """
    operators = [pair for difference in comparison.differences for pair in difference.operators.values()]
    operators += comparison.unattributed.values()
    removed = sum(max(0, pair.a - pair.b) for pair in operators)
    removed += sum(module.own.nodes for module in comparison.only_a)
    added = sum(max(0, pair.b - pair.a) for pair in operators)
    added += sum(module.own.nodes for module in comparison.only_b)
    changed = sum(len(difference.changed) for difference in comparison.differences)
    modules = len(comparison.differences) + len(comparison.only_a) + len(comparison.only_b)
    differ = f"{counted(modules, 'module')} {'differs' if modules == 1 else 'differ'}"
    return f"{differ}: {counted(removed, 'node')} removed, {added} added, {changed} changed"


_LEVELS = (Confidence.EXACT, Confidence.STRONG, Confidence.INFERRED)


def score_tables(scores: Scores) -> Iterator[RenderableType]:
    total = len(scores.provenance.nodes)
    yield plain(f"{scores.path}: {counted(total, 'node')}")
    numbers = ("nodes", "share", *(level.label for level in _LEVELS), "same", "less", "other", "seconds")
    shown = table("", "strategy", *numbers, right=numbers)
    for score in scores.scores:
        counts = [*(score.by_confidence.get(level, 0) for level in _LEVELS), score.same, score.less, score.other]
        share = share_text(score.attributed / total if total else 0.0)
        shown.add_row(score.strategy, str(score.attributed), share, *map(str, counts), f"{score.seconds:.2f}")
    yield shown
    yield Text("same, less, other: what the merged answer says, less than it, something else", "dim")
    yield Text(f"seconds are for judging; recording took {scores.recording:.1f} s for all of them together", "dim")
    yield from _disputes(scores)
    yield from note_lines(scores.notes)


def _disputes(scores: Scores) -> Iterator[RenderableType]:
    """Each with what the merged answer is, and what every strategy that says something else goes by."""
    if not scores.disputes:
        yield Text("no strategy contradicts another", "green")
        return
    yield Text(f"\n{counted(len(scores.disputes), 'node')} on which strategies contradict each other", "bold")
    for dispute in scores.disputes:
        entry, attribution = dispute.entry, dispute.entry.attribution
        answer = f"{modules_text(attribution.modules)}, {attribution.confidence.label}"
        yield plain(f"{entry.name or entry.key} ({entry.op_type}): {answer}")
        for claim in dispute.claims:
            why = "; ".join(map(str, claim.evidence))
            yield plain(f"  {claim.strategy}: {modules_text(claim.owners)}, {claim.confidence.label} ({why})", "dim")
