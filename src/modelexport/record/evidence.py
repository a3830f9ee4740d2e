"""How an answer is known, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum

from modelexport.record.hierarchy import ModuleCall


class Confidence(IntEnum):
    """Ordered; never a float.

    EXACT     a recorded fact names the module call
    STRONG    a recorded fact names the module; something beside it (the call, a companion) follows from structure
    INFERRED  follows from the neighbours in the dataflow
    FALLBACK  nothing but a default
    NONE      unknown; the attribution says why
    """

    NONE = 0
    FALLBACK = 1
    INFERRED = 2
    STRONG = 3
    EXACT = 4

    @property
    def label(self) -> str:
        return self.name.lower()

    @classmethod
    def parse(cls, label: str) -> Confidence:
        return cls[label.upper()]


class EvidenceKind(StrEnum):
    SCOPE = "scope"
    FX = "fx"
    TRACE = "trace"
    VALUE = "value"
    PARAMETER = "parameter"
    DATAFLOW = "dataflow"
    LINEAGE = "lineage"


@dataclass(frozen=True, order=True, slots=True)
class Evidence:
    """One reason: its kind, who gave it, and a detail for people."""

    kind: EvidenceKind
    source: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.source}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, slots=True)
class Claim:
    """What one strategy says of one node or initializer: the module calls that it belongs to, and why."""

    owners: tuple[ModuleCall, ...]
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    strategy: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """The answer for one node or initializer.

    owners    the module calls that issued it: one, or several for a fused or shared node
    ancestor  the one owner, or the innermost call that encloses all of them
    reason    why there is no owner, where there is none
    lost      claims that said something else
    role      what the node does, found from dataflow: `attention.query`, `mlp.gate`, `norm`; empty if nothing is known
    layer_id  the number of the repeated block that it is part of, in the order of execution
    """

    owners: tuple[ModuleCall, ...]
    ancestor: ModuleCall | None
    confidence: Confidence
    evidence: tuple[Evidence, ...] = ()
    reason: str = ""
    lost: tuple[Claim, ...] = ()
    role: str = ""
    layer_id: int | None = None

    @property
    def semantic_type(self) -> str:
        """The first part of the role: `attention` of `attention.query`."""
        return self.role.partition(".")[0]

    @property
    def component(self) -> str:
        """The second part of the role: `query` of `attention.query`."""
        return self.role.partition(".")[2]

    @property
    def module(self) -> str | None:
        """Path of the module (`#n` for a later call); for several owners, of the module that encloses them."""
        return None if self.ancestor is None else str(self.ancestor)

    @property
    def modules(self) -> tuple[str, ...]:
        return tuple(str(owner) for owner in self.owners)


def unattributed(reason: str) -> Attribution:
    return Attribution((), None, Confidence.NONE, reason=reason)
