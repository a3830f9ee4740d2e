"""What is counted of one export: how its strategies stand to the answer, and how well the file does without names."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from measure.strategies.judged_exports import JudgedExport, write_nameless, write_plain
from modelexport.api.attach import judge_file, score_strategy
from modelexport.api.environment import Clock
from modelexport.attribute.judge import AttributionResult, StrategyResult
from modelexport.attribute.resolve import Agreement, agreement
from modelexport.attribute.roles.assign import Layers
from modelexport.graph.file.tagged_file import open_tagged
from modelexport.inspect.compare import Score
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import Attribution, Claim, Confidence, EvidenceKind, NodeEntry

OWN, PLAIN, NAMELESS = "own export", "plain export", "without names"


@dataclass(frozen=True)
class Remark:
    """A node of which something else is said than expected, for the list below a table."""

    export: str
    file: str
    node: str
    said: str
    answer: str

    def __str__(self) -> str:
        return f"{self.export}, {self.file}: `{self.node}` is {self.said}; the answer is {self.answer}"


class Kind(StrEnum):
    """How a claim that names a layer which the answer does not name stands to the answer."""

    ANOTHER = "another layer"
    FURTHER = "a further layer"
    OPEN = "not told apart"


@dataclass(frozen=True)
class Stray:
    """A claim that names a layer which the answer does not."""

    strategy: str
    file: str
    confidence: Confidence
    kind: Kind
    remark: Remark


@dataclass(frozen=True)
class Attached:
    """Nodes that compute, and those of them that got the module that our own export gives them."""

    file: str
    computing: int
    same: int
    others: tuple[Remark, ...]


@dataclass(frozen=True)
class Nameless:
    """`htp` on a file without names; standings are to the answer of our own export by its default strategy.

    computing  standings of nodes that compute; None where nothing is claimed
    by_value   standings of nodes with a value that one call alone made
    """

    nodes: int
    attributed: int
    computing: Mapping[Agreement | None, int]
    by_value: Mapping[Agreement | None, int]
    wrong: tuple[Remark, ...]


@dataclass(frozen=True)
class Figures:
    name: str
    exporter: str
    nodes: int
    scores: tuple[Score, ...]
    merged: Mapping[Confidence, int]
    recording: float
    merging: float
    notes: tuple[str, ...]
    attached: tuple[Attached, ...]
    nameless: Nameless
    usage_claims: int
    usage_wrong: tuple[Remark, ...]
    strays: tuple[Stray, ...]


def figures_of(export: JudgedExport) -> Figures:
    plain, nameless = _foreign_verdicts(export)
    answers = export.merged.provenance
    files = {OWN: export.merged, PLAIN: plain, NAMELESS: nameless}
    usage = [(file, item) for file, verdict in files.items() for item in _by(verdict, "usage_based")]
    return Figures(
        name=export.name,
        exporter=export.exporter,
        nodes=len(export.graph.nodes),
        scores=tuple(score_strategy(judged, answers) for judged in export.judged),
        merged=Counter(entry.attribution.confidence for entry in answers.nodes.values()),
        recording=export.recording,
        merging=export.merging,
        notes=export.merged.notes,
        attached=(_attached(export, PLAIN, plain), _attached(export, NAMELESS, nameless)),
        nameless=_nameless(export, nameless),
        usage_claims=sum(len(item.claims.nodes) for _, item in usage),
        usage_wrong=tuple(remark for file, item in usage for remark in _not_owners(export, file, files[file], item)),
        strays=tuple(stray for file, verdict in files.items() for stray in _strays(export, file, verdict)),
    )


def _foreign_verdicts(export: JudgedExport) -> tuple[AttributionResult, AttributionResult]:
    """What `attach` says of a plain export and of one without names. It would only write it down after that."""
    with tempfile.TemporaryDirectory() as folder:
        plain, nameless = Path(folder) / "plain.onnx", Path(folder) / "nameless.onnx"
        write_plain(export, plain)
        write_nameless(plain, nameless)
        source = ModelSource(export.model)
        return (
            judge_file(open_tagged(plain), source, "all", Clock(None)),
            judge_file(open_tagged(nameless), source, "all", Clock(None)),
        )


def _by(verdict: AttributionResult, strategy: str) -> Sequence[StrategyResult]:
    return [item for item in verdict.judged if item.strategy == strategy]


def _paired(
    export: JudgedExport, answers: Iterable[NodeEntry], verdict: AttributionResult
) -> Iterator[tuple[NodeEntry, str]]:
    """Nodes of our own export with the keys that they have in another file: the same nodes in the same order."""
    for own, other in zip(answers, verdict.provenance.nodes.values(), strict=True):
        if own.op_type != other.op_type:
            raise ValueError(f"{export.label}: {own.key} and {other.key} are not the same node")
        yield own, other.key


def _attached(export: JudgedExport, file: str, verdict: AttributionResult) -> Attached:
    pairs = [
        pair for pair in _paired(export, export.own.nodes.values(), verdict) if pair[0].key in export.graph.computed
    ]
    others = []
    for own, key in pairs:
        found = verdict.provenance.nodes[key].attribution
        if found.ancestor != own.attribution.ancestor:
            others.append(_remark(export, file, own, _text(found), own.attribution))
    return Attached(file, len(pairs), len(pairs) - len(others), tuple(others))


def _nameless(export: JudgedExport, verdict: AttributionResult) -> Nameless:
    claims = _by(verdict, "htp")[0].claims.nodes
    computing: Counter[Agreement | None] = Counter()
    by_value: Counter[Agreement | None] = Counter()
    wrong = []
    for own, key in _paired(export, export.own.nodes.values(), verdict):
        claim = claims.get(key)
        standing = None if claim is None else agreement(claim, own.attribution, export.hierarchy)
        if own.key in export.graph.computed:
            computing[standing] += 1
        if claim is not None and _is_by_value(claim):
            by_value[standing] += 1
            if standing is Agreement.OTHER:
                wrong.append(_remark(export, NAMELESS, own, _text(claim), own.attribution))
    return Nameless(len(export.graph.nodes), len(claims), computing, by_value, tuple(wrong))


def _is_by_value(claim: Claim) -> bool:
    return claim.confidence is Confidence.EXACT and any(item.kind is EvidenceKind.VALUE for item in claim.evidence)


def _not_owners(
    export: JudgedExport, file: str, verdict: AttributionResult, judged: StrategyResult
) -> Iterator[Remark]:
    """Claims of modules that our own export does not name."""
    for own, key in _paired(export, export.own.nodes.values(), verdict):
        claim = judged.claims.nodes.get(key)
        if claim is not None and not set(claim.owners) <= set(own.attribution.owners):
            yield _remark(export, file, own, _text(claim), own.attribution)


def _strays(export: JudgedExport, file: str, verdict: AttributionResult) -> Iterator[Stray]:
    layers = Layers(export.hierarchy)
    for judged in verdict.judged:
        for own, key in _paired(export, export.merged.provenance.nodes.values(), verdict):
            claim = judged.claims.nodes.get(key)
            kind = None if claim is None else _kind(claim, own.attribution, layers)
            if claim is not None and kind is not None:
                remark = _remark(export, file, own, _text(claim), own.attribution)
                yield Stray(judged.strategy, file, claim.confidence, kind, remark)


def _kind(claim: Claim, answer: Attribution, layers: Layers) -> Kind | None:
    if blocks_of(claim.owners, layers) <= blocks_of(answer.owners, layers):
        return None
    if agreement(claim, answer, layers.hierarchy) is Agreement.LESS:
        return Kind.OPEN  # the right call is among several of one module
    return Kind.FURTHER if set(answer.owners) < set(claim.owners) else Kind.ANOTHER


def blocks_of(owners: Iterable[ModuleCall], layers: Layers) -> set[ModuleCall]:
    """The layers that calls are in; layers of one number in encoder and decoder are two."""
    found = (layers.block(Attribution((owner,), owner, Confidence.EXACT)) for owner in owners)
    return {block for block in found if block is not None}


def _remark(export: JudgedExport, file: str, own: NodeEntry, said: str, answer: Attribution) -> Remark:
    return Remark(export.label, file, f"{own.key} ({own.op_type})", said, _text(answer))


def _text(found: Claim | Attribution) -> str:
    who = " + ".join(f"`{owner}`" if str(owner) else "the model itself" for owner in found.owners)
    why = "; ".join(dict.fromkeys(map(str, found.evidence)))
    return f"{who or 'unknown'} ({found.confidence.label}: {why})"
