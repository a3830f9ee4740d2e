"""Measure every strategy on every architecture of the tests and write the tables of docs/strategies.md.

The text of the page is written by hand. A table stands between two comments that name it, and only what is between
them is replaced. Exits with 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tests.architectures import NAMES

from measure.bench.judged_export import EXPORTERS, judged_export
from measure.bench.report import Table, machine
from measure.bench.strategy_figures import NAMELESS, OWN, PLAIN, Attached, Figures, Kind, Remark, Stray, figures_of
from modelexport.analysis.scores import Score
from modelexport.record.evidence import Confidence
from modelexport.resolve.merge import Agreement
from modelexport.strategies.catalogue import ALL, CATALOGUE

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
ATTRIBUTED = 0.98
ATTACHED = {PLAIN: 0.99, NAMELESS: 0.97}
LEVELS = (Confidence.EXACT, Confidence.STRONG, Confidence.INFERRED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("only", nargs="*", metavar="MODEL", help="measure these, and write no page")
    only = parser.parse_args().only
    tables = tables_of([_figures(name, exporter) for name in only or NAMES for exporter in EXPORTERS])
    if only:
        sys.stdout.write("\n".join(table.markdown() for table in tables.values()))
    else:
        PAGE.write_text(filled(PAGE.read_text(), {name: table.body() for name, table in tables.items()}))
    missed = [table.title for table in tables.values() if not table.holds]
    if missed:
        sys.stderr.write(f"missed: {', '.join(missed)}\n")
    return 1 if missed else 0


def filled(page: str, blocks: Mapping[str, str]) -> str:
    """The page with each block put between its comments; a page without a place for one is an error."""
    for name, block in blocks.items():
        place = re.compile(rf"(<!-- measured: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if len(place.findall(page)) != 1:
            raise ValueError(f"the page needs one place for the table {name}")
        # A function, because a node's name may hold what `re` takes for a reference.
        page = place.sub(lambda found, block=block: f"{found[1]}{block}\n{found[2]}", page)  # type: ignore[misc]
    return page


def _figures(name: str, exporter: str) -> Figures:
    sys.stderr.write(f"strategies: {name}, {exporter}\n")
    return figures_of(judged_export(name, exporter))


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
    text = f"All models together. Measured on {machine()}."
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
    standings = tuple(percent(count, claimed) for count in (score.same, score.less, score.other))
    return (*_confidences(score.by_confidence, nodes), *standings, _seconds(score.seconds))


def _confidences(counts: Mapping[Confidence, int], nodes: int) -> tuple[str, ...]:
    shown = [counts.get(level, 0) for level in LEVELS]
    return tuple(percent(count, nodes) for count in (*shown, nodes - sum(shown)))


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
        computing = [percent(found.computing.get(standing, 0), sum(found.computing.values())) for standing in Agreement]
        by_value = [str(found.by_value.get(standing, 0)) for standing in Agreement]
        attributed = percent(found.attributed, found.nodes)
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
        shares = [f"{percent(found.same, found.computing)}" for found in figures.attached]
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


def percent(count: int, total: int) -> str:
    """Rounded so that only all is 100 and only nothing is 0."""
    if not total:
        return "–"
    if count in (0, total):
        return "0" if not count else "100"
    return f"{min(max(100 * count / total, 0.1), 99.9):.1f}"


def _none(count: int) -> tuple[str, ...]:
    return ("",) * count


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f}" if seconds >= 0.95 else f"{seconds:.1g}"


if __name__ == "__main__":
    sys.exit(main())
