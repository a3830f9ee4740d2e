"""What several strategies say of one file, side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelexport.record.evidence import Claim, Confidence
from modelexport.record.provenance import NodeEntry, Provenance


@dataclass(frozen=True)
class Score:
    """One strategy.

    by_confidence  nodes that it attributes
    same           nodes of which it says what the merged answer says
    less           nodes of which it says less: a module around the right one, or not all owners
    other          nodes of which it says something else
    seconds        for judging; recording what it judges by is not in it
    """

    strategy: str
    by_confidence: Mapping[Confidence, int]
    same: int
    less: int
    other: int
    seconds: float

    @property
    def attributed(self) -> int:
        return sum(self.by_confidence.values())


@dataclass(frozen=True)
class Dispute:
    """A node on which strategies contradict each other, with all that was claimed."""

    entry: NodeEntry
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Scores:
    """All strategies on one file.

    provenance  the merged answer
    recording   seconds that it took to record what strategies judge by
    """

    path: str
    provenance: Provenance
    scores: tuple[Score, ...]
    disputes: tuple[Dispute, ...]
    recording: float
    notes: tuple[str, ...] = ()
