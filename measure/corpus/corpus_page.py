"""The page of the corpus, from rows and results.

It has no times and no order of arrival, so that the same results give the same page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from measure.corpus.rows import FAMILIES, Outcome, Proof, Result, Row, describe_change
from measure.pages import MEASURED, Table, compose_page, list_versions, percent, written_by
from measure.results import Results, read_results

PAGE = MEASURED / "corpus.md"
RESULTS = Path(__file__).with_name("results.json")
# Shares of nodes that are proved or enclosed: of compute nodes in files whose numbers agree, and in all; of all nodes.
TARGET, TARGET_OF_ALL_FILES, TARGET_OF_ALL_NODES = 0.99, 0.975, 0.94
# What is left out never lasts: a worker that broke down stands among the changes.
_COUNTED = (Outcome.OK, Outcome.DIVERGES, Outcome.UNRUNNABLE, Outcome.RANDOM, Outcome.REFUSED, Outcome.DEFECT)
_VERDICTS = ("nodes", "proved", "enclosed", "not provable", "contradicted", "unattributed")


@dataclass(frozen=True)
class Entry:
    """A row and what one attempt at it gave."""

    row: Row
    result: Result

    @property
    def change(self) -> str:
        return describe_change(self.row.expected[self.result.exporter], self.result)

    @property
    def label(self) -> str:
        return f"{self.row.name}, {self.result.exporter}"


@dataclass(frozen=True)
class Sum:
    """The proofs of several attempts together."""

    entries: tuple[Entry, ...]

    @property
    def proofs(self) -> tuple[Proof, ...]:
        return tuple(entry.result.proof for entry in self.entries if entry.result.proof is not None)

    @property
    def sound(self) -> Sum:
        """Those whose numbers agree: nothing can be shown by numbers that are wrong."""
        return Sum(tuple(entry for entry in self.entries if entry.result.outcome is not Outcome.DIVERGES))

    @property
    def compute(self) -> int:
        return sum(proof.compute for proof in self.proofs)

    @property
    def share(self) -> float:
        """Of the nodes that compute floats, those whose module is proved or enclosed; 1 if there are none."""
        return sum(proof.compute_shown for proof in self.proofs) / self.compute if self.compute else 1.0

    @property
    def share_of_all(self) -> float:
        """Of all nodes, those whose module is proved or enclosed; 1 if there are none."""
        nodes = sum(proof.nodes for proof in self.proofs)
        return sum(proof.shown for proof in self.proofs) / nodes if nodes else 1.0

    def cells(self) -> tuple[str, ...]:
        outcomes = Counter(entry.result.outcome for entry in self.entries)
        counts = [_verdicts(proof) for proof in self.proofs] or [(0,) * len(_VERDICTS)]
        verdicts = (str(sum(column)) for column in zip(*counts, strict=True))
        shares = (percent(self.share_of_all), str(self.compute), percent(self.share))
        return (*(str(outcomes[outcome]) for outcome in _COUNTED), *verdicts, *shares)


_SUM_COLUMNS = (*_COUNTED, *_VERDICTS, "all shown %", "compute", "shown %")


def entries_of(rows: Sequence[Row], results: Results[Result]) -> tuple[Entry, ...]:
    """In the order of the manifest; attempts that were never made are left out."""
    keys = ((row, (row.name, exporter)) for row in rows for exporter in row.exporters)
    return tuple(Entry(row, results.by_key[key]) for row, key in keys if key in results.by_key)


def read_known() -> Results[Result]:
    return read_results(RESULTS, Result)


def compose_corpus(rows: Sequence[Row], results: Results[Result]) -> str:
    entries = entries_of(rows, results)
    head = "\n".join([_head(rows, results.versions), *_changes(entries)]).removesuffix("\n")
    tables = [_summary(entries), _families(entries), _rows(entries), _ways(entries), _open(entries)]
    return compose_page("Corpus", head, tables, *_exceptions(entries))


def _head(rows: Sequence[Row], versions: Mapping[str, str]) -> str:
    hand_made = sum(row.hand_made for row in rows)
    return (
        f"{written_by('corpus', f'with {list_versions(versions)}')}\n\n"
        f"{len(rows) - hand_made} architectures of Hugging Face, small and with perturbed weights, and {hand_made} "
        "hand-made networks, one for each thing that exporters find hard. Each one is exported by both exporters with "
        "the default strategy and verified; architectures also by `--exporter transformers`, where it can export them. "
        "`measure/corpus/models.toml` says what must come out; "
        "`measure/corpus/results.json` has the figures of this page for machines.\n"
    )


def _changes(entries: Iterable[Entry]) -> Iterator[str]:
    lines = [f"- {entry.label}: {entry.change}" for entry in entries if entry.change]
    if lines:
        yield "\n".join(["## Changed", "", "Not as `measure/corpus/models.toml` says:", "", *lines, ""])


def _summary(entries: Sequence[Entry]) -> Table:
    made = dict.fromkeys(entry.result.exporter for entry in entries)
    parts = {exporter: [entry for entry in entries if entry.result.exporter == exporter] for exporter in made}
    rows = [(name, *Sum(tuple(part)).cells()) for name, part in {**parts, "together": entries}.items()]
    whole = Sum(tuple(entries))
    text = (
        f"Of the nodes that compute floats from the model's inputs, {percent(whole.sound.share)} % are proved or "
        f"enclosed (target {percent(TARGET)} %), in files whose numbers agree with PyTorch's; in all files, "
        f"{percent(whole.share)} % (target {percent(TARGET_OF_ALL_FILES)} %). Of all nodes, "
        f"{percent(whole.share_of_all)} % are (target {percent(TARGET_OF_ALL_NODES)} %). The first columns count "
        "attempts, the others nodes."
    )
    return Table("Together", text, ("exporter", *_SUM_COLUMNS), tuple(rows), not find_missed(entries))


def find_missed(entries: Sequence[Entry]) -> list[str]:
    """Shares that are below their target, in words."""
    whole = Sum(tuple(entries))
    shares = {
        "compute nodes in files whose numbers agree": (whole.sound.share, TARGET),
        "compute nodes in all files": (whole.share, TARGET_OF_ALL_FILES),
        "all nodes": (whole.share_of_all, TARGET_OF_ALL_NODES),
    }
    return [
        f"{percent(share)} % of {what} are proved or enclosed: less than {percent(target)} %"
        for what, (share, target) in shares.items()
        if share < target
    ]


def _families(entries: Sequence[Entry]) -> Table:
    parts = {family: tuple(entry for entry in entries if entry.row.family == family) for family in FAMILIES}
    rows = [(family, *Sum(part).cells()) for family, part in parts.items() if part]
    return Table("Families", "", ("family", *_SUM_COLUMNS), tuple(rows))


def _rows(entries: Iterable[Entry]) -> Table:
    rows = tuple(_row(entry) for entry in entries)
    return Table(
        "Rows",
        "",
        ("row", "family", "class", "exporter", "outcome", *_VERDICTS, "all shown %", "shown %", "numbers"),
        rows,
    )


def _row(entry: Entry) -> tuple[str, ...]:
    row, result = entry.row, entry.result
    head = (row.name, row.family, f"`{row.model_class}`", result.exporter, str(result.outcome))
    if result.proof is None:
        return (*head, *("",) * len(_VERDICTS), "", "", "")
    part = Sum((entry,))
    numbers = "wrong" if result.outcome is Outcome.DIVERGES else "agree"
    return (*head, *map(str, _verdicts(result.proof)), percent(part.share_of_all), percent(part.share), numbers)


def _verdicts(proof: Proof) -> tuple[int, ...]:
    """In the order of the columns."""
    shown = (proof.nodes, proof.proved, proof.enclosed)
    return (*shown, proof.not_provable, proof.contradicted, proof.unattributed)


def _ways(entries: Iterable[Entry]) -> Table:
    counts: Counter[str] = Counter()
    for proof in Sum(tuple(entries)).proofs:
        counts.update(proof.shown_by)
    rows = tuple((way, str(count)) for way, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])))
    return Table("What shows nodes", "", ("shown by", "nodes"), rows)


def _open(entries: Iterable[Entry]) -> Table:
    compute: Counter[str] = Counter()
    rest: Counter[str] = Counter()
    attempts: Counter[str] = Counter()
    for proof in Sum(tuple(entries)).proofs:
        compute.update(proof.open)
        rest.update(proof.open_rest)
        attempts.update(proof.open.keys() | proof.open_rest.keys())
    ranked = sorted(attempts, key=lambda reason: (-compute[reason], -rest[reason], reason))
    rows = tuple((reason, str(compute[reason]), str(rest[reason]), str(attempts[reason])) for reason in ranked)
    return Table("Nodes that are not shown", "", ("reason", "compute", "others", "attempts"), rows)


def _exceptions(entries: Iterable[Entry]) -> Iterator[str]:
    """What is not ok, with the reason; what torch refuses comes in the order of the rows too."""
    lines = [_exception(entry) for entry in entries if entry.result.outcome is not Outcome.OK]
    if lines:
        yield "\n".join(["## Reasons", "", *lines, ""])


def _exception(entry: Entry) -> str:
    result = entry.result
    because = entry.row.expected[result.exporter].because
    explained = f" {because}" if because and not entry.change else ""
    defects = "".join(f"\n  - {line}" for line in result.defects)
    return f"- {entry.label}: {result.outcome}: `{result.reason}`{explained}{defects}"
