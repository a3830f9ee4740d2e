"""Result of one family: what was exported, how its nodes are attributed, what the files compute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from measure.corpus.rows import Proof
from measure.generation.witness import TOLERANCE, GenerationWitness, GridPoint
from measure.results import Key

# Export and run; then what `verify` says of the exported files.
PACKAGE, VERIFY = TASKS = ("package", "verify")


@dataclass(frozen=True)
class ComponentFigures:
    """
    confidences  nodes by how sure their module is
    check        what is wrong with its numbers by the export's own check, at the sizes that were recorded
    """

    name: str
    nodes: int
    confidences: Mapping[str, int] = field(default_factory=dict)
    check: str = ""

    @property
    def unattributed(self) -> int:
        return self.confidences.get("none", 0) + self.confidences.get("fallback", 0)


@dataclass(frozen=True)
class FamilyResult:
    """
    failure    why there is no package, or why it could not be run
    absent     modules with parameters that are in no file although the model reads them
    unread     modules that are in no file, and that the model does not read
    two_tags   modules that have one tag in one file and another in another
    genai      `equal`, what is wrong, or why onnxruntime-genai cannot take it; empty for what is not a decoder
    differences  of networks that do not generate: the greatest of each file, in parts of the largest number
    proof      verdicts of `verify` on the nodes of all files, of the task VERIFY
    seconds    of the export that was measured
    """

    family: str
    kind: str
    task: str = PACKAGE
    failure: str = ""
    components: tuple[ComponentFigures, ...] = ()
    absent: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    two_tags: tuple[str, ...] = ()
    generation: GenerationWitness = field(default_factory=GenerationWitness)
    grid: tuple[GridPoint, ...] = ()
    genai: str = ""
    differences: Mapping[str, float] = field(default_factory=dict)
    proof: Proof | None = None
    seconds: float = 0.0

    @property
    def key(self) -> Key:
        return self.family, self.task

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
        if self.task == VERIFY:
            return self._list_defects()
        if self.kind == "networks":
            return self._list_differing()
        worst = next((point for point in self.grid if not point.holds), None)
        checks = {
            self.generation.fault or "other tokens": self.generation.equal and not self.generation.fault,
            f"{self.unattributed} nodes without a module": not self.unattributed,
            f"in no file: {', '.join(self.absent[:3])}": not self.absent,
            f"two tags: {', '.join(self.two_tags[:3])}": not self.two_tags,
            f"grid: {_describe(worst)}": worst is None,
            f"genai: {self.genai}": self.genai in ("", "equal") or self.genai.startswith("refused"),
        }
        return [*self._list_failed_checks(), *(fault for fault, holds in checks.items() if not holds)]

    def _list_failed_checks(self) -> list[str]:
        return [f"{component.name}: {component.check}" for component in self.components if component.check]

    def _list_defects(self) -> list[str]:
        proof = self.proof or Proof()
        counts = {"contradicted": proof.contradicted, "unattributed": proof.unattributed}
        return [f"verify: {count} nodes are {verdict}" for verdict, count in counts.items() if count]

    def _list_differing(self) -> list[str]:
        differing = {name: size for name, size in self.differences.items() if size > TOLERANCE}
        faults = [f"{name} differs by {size:.2g}" for name, size in differing.items()]
        faults += [
            f"{component.name} was not run" for component in self.components if component.name not in self.differences
        ]
        faults += self._list_failed_checks()
        return faults + ([f"{self.unattributed} nodes without a module"] if self.unattributed else [])

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> FamilyResult:
        return cls(
            **{
                **content,
                "components": tuple(ComponentFigures(**item) for item in content["components"]),
                "absent": tuple(content["absent"]),
                "unread": tuple(content.get("unread", ())),
                "two_tags": tuple(content["two_tags"]),
                "generation": GenerationWitness(**content["generation"]),
                "proof": None if content.get("proof") is None else Proof(**content["proof"]),
                "grid": tuple(GridPoint(**item) for item in content["grid"]),
            }
        )


def _describe(point: GridPoint | None) -> str:
    return "" if point is None else f"batch {point.batch}, past {point.past}, query {point.query}: {point.fault}"
