"""Result of one family: what was exported, how its nodes are attributed, what the files compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from measure.generation.witness import GenerationWitness, GridPoint
from measure.results import Key

TASK = "package"


@dataclass(frozen=True)
class ComponentFigures:
    """
    confidences  nodes by how sure their module is
    """

    name: str
    nodes: int
    confidences: Mapping[str, int] = field(default_factory=dict)

    @property
    def unattributed(self) -> int:
        return self.confidences.get("none", 0) + self.confidences.get("fallback", 0)


@dataclass(frozen=True)
class FamilyResult:
    """
    failure    why there is no package, or why it could not be run
    absent     modules with parameters that are in no file
    two_tags   modules that have one tag in one file and another in another
    genai      `equal`, what is wrong, or why onnxruntime-genai cannot take it; empty for what is not a decoder
    seconds    of the export that was measured
    """

    family: str
    kind: str
    failure: str = ""
    components: tuple[ComponentFigures, ...] = ()
    absent: tuple[str, ...] = ()
    two_tags: tuple[str, ...] = ()
    generation: GenerationWitness = field(default_factory=GenerationWitness)
    grid: tuple[GridPoint, ...] = ()
    genai: str = ""
    seconds: float = 0.0

    @property
    def key(self) -> Key:
        return self.family, TASK

    @property
    def nodes(self) -> int:
        return sum(component.nodes for component in self.components)

    @property
    def unattributed(self) -> int:
        return sum(component.unattributed for component in self.components)

    @property
    def points(self) -> int:
        """Of the grid, those that agree."""
        return sum(point.holds for point in self.grid)

    def list_faults(self) -> list[str]:
        """What is not as it should be; empty where all is."""
        if self.failure:
            return [self.failure]
        worst = next((point for point in self.grid if not point.holds), None)
        checks = {
            self.generation.fault or "other tokens": self.generation.equal and not self.generation.fault,
            f"{self.unattributed} nodes without a module": not self.unattributed,
            f"in no file: {', '.join(self.absent[:3])}": not self.absent,
            f"two tags: {', '.join(self.two_tags[:3])}": not self.two_tags,
            f"grid: {_describe(worst)}": worst is None,
            f"genai: {self.genai}": self.genai in ("", "equal") or self.genai.startswith("refused"),
        }
        return [fault for fault, holds in checks.items() if not holds]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FamilyResult:
        return cls(
            **{
                **content,
                "components": tuple(ComponentFigures(**item) for item in content["components"]),
                "absent": tuple(content["absent"]),
                "two_tags": tuple(content["two_tags"]),
                "generation": GenerationWitness(**content["generation"]),
                "grid": tuple(GridPoint(**item) for item in content["grid"]),
            }
        )


def _describe(point: GridPoint | None) -> str:
    return "" if point is None else f"batch {point.batch}, past {point.past}, query {point.query}: {point.fault}"
