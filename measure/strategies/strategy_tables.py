"""Tables of strategies: how each one stands to the answer on every architecture of the tests, and what is missed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.support.architectures import NAMES

from measure.corpus.rows import EXPORTERS
from measure.pages import Table, describe_machine, percent_of
from measure.strategies.judged_exports import export_and_judge
from measure.strategies.strategy_figures import NAMELESS, OWN, PLAIN, Attached, Figures, Kind, Remark, Stray, figures_of
from modelexport.attribute.resolve import Agreement
from modelexport.attribute.strategies import ALL, CATALOGUE
from modelexport.inspect.compare import Score
from modelexport.record.provenance import Confidence

ATTRIBUTED = 0.98
ATTACHED = {PLAIN: 0.99, NAMELESS: 0.97}
LEVELS = (Confidence.EXACT, Confidence.STRONG, Confidence.INFERRED)


def measure_strategies(names: Sequence[str] = ()) -> dict[str, Table]:
    """The tables of the page, by their names there; of all architectures if none is named."""
    return tables_of([_measure_figures(name, exporter) for name in names or NAMES for exporter in EXPORTERS])


def _measure_figures(name: str, exporter: str) -> Figures:
    sys.stderr.write(f"strategies: {name}, {exporter}\n")
    return figures_of(export_and_judge(name, exporter))


def tables_of(all_figures: Sequence[Figures]) -> dict[str, Table]:
    tables = {"summary": _summary(all_figures)}
    for exporter in EXPORTERS:
        tables[exporter] = _scores([figures for figures in all_figures if figures.exporter == exporter], exporter)
    return tables | {
        "nameless": _nameless(all_figures),
        "attach": _attach(all_figures),
        "usage": _usage(all_figures),
        "layers": _layers(all_figures),
    }


def _summary(all_figures: Sequence[Figures]) -> Table:
    rows = []
    for exporter in EXPORTERS:
        chosen = [figures for figures in all_figures if figures.exporter == exporter]
        nodes = sum(figures.nodes for figures in chosen)
        for strategy in CATALOGUE:
            scores = [score for figures in chosen for score in figures.scores if score.strategy == strategy]
            rows.append((exporter, f"`{strategy}`", *_cells(_sum(strategy, scores), nodes)))
        rows.append(
            (exporter, f"`{ALL}`", *_confidences(_added(figures.merged for figures in chosen), nodes), *_none(4))
        )
    text = f"All models together. Measured on {describe_machine()}."
    columns = ("exporter", "strategy", *_level_names(), "same", "less", "other", "seconds")
    return Table("All models", text, columns, tuple(rows))


def _scores(all_figures: Sequence[Figures], exporter: str) -> Table:
    rows = []
    for figures in all_figures:
        known = {score.strategy: score for score in figures.scores}
        head = (figures.name, str(figures.nodes), _seconds(figures.recording))
        for strategy in CATALOGUE:
            cells = _cells(known[strategy], figures.nodes) if strategy in known else _none(8)
            rows.append((*head, f"`{strategy}`", *cells))
            head = ("", "", "")
        merged = _confidences(figures.merged, figures.nodes)
        rows.append((*head, f"`{ALL}`", *merged, *_none(3), _seconds(figures.merging)))
    columns = ("model", "nodes", "recording s", "strategy", *_level_names(), "same", "less", "other", "seconds")
    notes = [f"{figures.name}: {note}" for figures in all_figures for note in figures.notes]
    return Table(exporter, "", columns, tuple(rows), notes=tuple(notes))


def _level_names() -> tuple[str, ...]:
    return (*(level.label for level in LEVELS), "none")


def _cells(score: Score, nodes: int) -> tuple[str, ...]:
    """Confidences as shares of all nodes, standings as shares of what is claimed."""
    claimed = score.attributed
    standings = tuple(percent_of(count, claimed) for count in (score.same, score.less, score.other))
    return (*_confidences(score.by_confidence, nodes), *standings, _seconds(score.seconds))


def _confidences(counts: Mapping[Confidence, int], nodes: int) -> tuple[str, ...]:
    shown = [counts.get(level, 0) for level in LEVELS]
    return tuple(percent_of(count, nodes) for count in (*shown, nodes - sum(shown)))


def _sum(strategy: str, scores: Sequence[Score]) -> Score:
    return Score(
        strategy,
        _added(score.by_confidence for score in scores),
        sum(score.same for score in scores),
        sum(score.less for score in scores),
        sum(score.other for score in scores),
        sum(score.seconds for score in scores),
    )


def _added(counts: Iterable[Mapping[Confidence, int]]) -> Counter[Confidence]:
    total: Counter[Confidence] = Counter()
    for item in counts:
        total.update(item)
    return total


def _nameless(all_figures: Sequence[Figures]) -> Table:
    rows = []
    for figures in all_figures:
        found = figures.nameless
        computes = sum(found.computing.values())
        computing = [percent_of(found.computing.get(standing, 0), computes) for standing in Agreement]
        by_value = [str(found.by_value.get(standing, 0)) for standing in Agreement]
        attributed = percent_of(found.attributed, found.nodes)
        rows.append((figures.name, figures.exporter, str(found.nodes), attributed, *computing, *by_value))
    parts = [figures.nameless for figures in all_figures]
    wrong = [remark for part in parts for remark in part.wrong]
    share = sum(part.attributed for part in parts) / sum(part.nodes for part in parts)
    holds = not wrong and all(part.attributed >= ATTRIBUTED * part.nodes for part in parts)
    matched = sum(sum(part.by_value.values()) for part in parts)
    text = (
        f"Together: {share:.1%} of nodes attributed (target {ATTRIBUTED:.0%} for each file); "
        f"of {matched} nodes with a value that one call alone made, {len(wrong)} contradicted (target 0)."
    )
    standings = (*(f"computing: {item}" for item in Agreement), *(f"by value: {item}" for item in Agreement))
    columns = ("model", "exporter", "nodes", "attributed", *standings)
    return Table("htp without names", text, columns, tuple(rows), holds, _lines(wrong))


def _attach(all_figures: Sequence[Figures]) -> Table:
    rows = []
    for figures in all_figures:
        shares = [f"{percent_of(found.same, found.computing)}" for found in figures.attached]
        rows.append((figures.name, figures.exporter, str(figures.attached[0].computing), *shares))
    texts, holds = [], True
    for exporter in EXPORTERS:
        chosen = [figures for figures in all_figures if figures.exporter == exporter]
        for file, target in ATTACHED.items():
            found = [item for figures in chosen for item in figures.attached if item.file == file]
            share = _share(found)
            holds &= share >= target
            texts.append(f"{exporter}, {file}: {share:.1%} (target {target:.0%})")
    remarks = [remark for figures in all_figures for found in figures.attached for remark in found.others]
    columns = ("model", "exporter", "computing nodes", PLAIN, NAMELESS)
    return Table("attach", f"Together: {'; '.join(texts)}.", columns, tuple(rows), holds, _lines(remarks))


def _share(found: Sequence[Attached]) -> float:
    return sum(item.same for item in found) / max(sum(item.computing for item in found), 1)


def _usage(all_figures: Sequence[Figures]) -> Table:
    rows = [
        (figures.name, figures.exporter, str(figures.usage_claims), str(len(figures.usage_wrong)))
        for figures in all_figures
    ]
    wrong = [remark for figures in all_figures for remark in figures.usage_wrong]
    text = f"Together: {len(wrong)} wrong of {sum(figures.usage_claims for figures in all_figures)} (target 0)."
    return Table("usage_based", text, ("model", "exporter", "claims", "wrong"), tuple(rows), not wrong, _lines(wrong))


def _layers(all_figures: Sequence[Figures]) -> Table:
    strays = [stray for figures in all_figures for stray in figures.strays]
    rows = []
    for strategy in CATALOGUE:
        for file in (OWN, PLAIN, NAMELESS):
            here = [stray for stray in strays if stray.strategy == strategy and stray.file == file]
            counts = Counter(stray.kind for stray in here)
            kinds = (str(counts[kind]) for kind in Kind)
            rows.append((f"`{strategy}`", file, str(_firm(here)), str(len(here)), *kinds))
    found = Counter(stray.kind for stray in strays)
    text = (
        f"Together: {_firm(strays)} claims that are at least strong, {len(strays)} in all (target 0 for both). "
        f"Of all, {', '.join(f'{found[kind]} {kind}' for kind in Kind)}."
    )
    columns = ("strategy", "file", "at least strong", "all", *(f"of these {kind}" for kind in Kind))
    return Table("Layers", text, columns, tuple(rows), not strays, (*_by_node(strays), *_not_told_apart(strays)))


def _firm(strays: Sequence[Stray]) -> int:
    return sum(stray.confidence >= Confidence.STRONG for stray in strays)


def _by_node(strays: Sequence[Stray]) -> Iterator[str]:
    """One line for each node: what several strategies say of it on several files is mostly the same."""
    told: dict[tuple[str, str, str, Kind], dict[str, list[str]]] = {}
    for stray in strays:
        if stray.kind is not Kind.OPEN:
            place = (stray.remark.export, stray.remark.node, stray.remark.answer, stray.kind)
            who = told.setdefault(place, {}).setdefault(stray.remark.said, [])
            who.append(f"`{stray.strategy}` on {stray.file}")
    for (export, node, answer, kind), said in told.items():
        claims = "; ".join(f"{claim} by {', '.join(who)}" for claim, who in said.items())
        yield f"{kind}: {export}: `{node}` is {answer}; claimed: {claims}"


def _not_told_apart(strays: Sequence[Stray]) -> Iterator[str]:
    """One line for all nodes of a file whose calls a strategy cannot tell apart."""
    nodes: dict[tuple[str, str, str], list[str]] = {}
    for stray in strays:
        if stray.kind is Kind.OPEN:
            nodes.setdefault((stray.remark.export, stray.file, stray.strategy), []).append(f"`{stray.remark.node}`")
    for (export, file, strategy), names in nodes.items():
        yield f"{Kind.OPEN}: {export}, {file}, `{strategy}`: {', '.join(names)}"


def _lines(remarks: Iterable[Remark]) -> tuple[str, ...]:
    return tuple(map(str, remarks))


def _none(count: int) -> tuple[str, ...]:
    return ("",) * count


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 0.95 else f"{seconds:.1g}"
