"""What an analysis says of a file. Its JSON is described by `record/schema/analysis.schema.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelexport.record.evidence import Attribution, Confidence, EvidenceKind


@dataclass(frozen=True)
class FileFacts:
    """The file and how its record came to be.

    matches_record  the graph is the one that the record was made for, unchanged
    model           what was exported, as the user named it
    """

    path: str
    ir_version: int
    opsets: Mapping[str, int]
    exporter: str
    strategy: str
    model: str
    tools: Mapping[str, str]
    fingerprint: str
    matches_record: bool


@dataclass(frozen=True)
class NodeFacts:
    """One node. `module` is the module that issued it, or the one that encloses all of `modules`.

    role   what it does, `attention.query`; empty if nothing is known
    layer  number of the repeated block that it is in
    """

    name: str
    key: str
    op_type: str
    module: str | None
    modules: tuple[str, ...]
    tag: str
    confidence: Confidence
    evidence: tuple[str, ...]
    reason: str
    role: str = ""
    layer: int | None = None


@dataclass(frozen=True)
class RoleFacts:
    """One role: how many nodes have it, and in which layers they are."""

    role: str
    nodes: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Amounts:
    """What belongs to a module. What has several owners counts for each, and once for a module around them.

    parameters  elements of weights: initializers with a parameter's name, or folded from one by the exporter
    bytes       size of all initializers, by their types and shapes
    """

    nodes: int
    parameters: int
    bytes: int
    op_types: Mapping[str, int]


@dataclass(frozen=True)
class ModuleFacts:
    """One module: what it owns itself and with the modules inside of it; no tag if the policy hides it."""

    path: str
    class_name: str
    tag: str
    calls: int
    own: Amounts
    total: Amounts


@dataclass(frozen=True)
class Tally:
    """How many there are, by how sure their owner is and by kind of evidence (one may have several kinds)."""

    total: int
    by_confidence: Mapping[Confidence, int]
    by_evidence: Mapping[EvidenceKind, int]

    @classmethod
    def of(cls, attributions: Iterable[Attribution]) -> Tally:
        confidences: Counter[Confidence] = Counter()
        kinds: Counter[EvidenceKind] = Counter()
        for attribution in attributions:
            confidences[attribution.confidence] += 1
            kinds.update({evidence.kind for evidence in attribution.evidence})
        return cls(
            confidences.total(),
            {level: confidences[level] for level in sorted(Confidence, reverse=True)},
            {kind: kinds[kind] for kind in EvidenceKind},
        )

    def share(self, count: int) -> float:
        return count / self.total if self.total else 0.0


@dataclass(frozen=True)
class Coverage:
    nodes: Tally
    initializers: Tally


@dataclass(frozen=True)
class Unowned:
    """A module that owns neither a node nor an initializer. `inside`: modules inside of it do."""

    path: str
    class_name: str
    inside: bool
    reason: str


@dataclass(frozen=True)
class Analysis:
    file: FileFacts
    nodes: tuple[NodeFacts, ...]
    modules: tuple[ModuleFacts, ...]
    coverage: Coverage
    unowned: tuple[Unowned, ...]
    roles: tuple[RoleFacts, ...] = ()
    filter_tag: str = ""
