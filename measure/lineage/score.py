"""Figures of the matrix, and how they add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

# Names that are hidden: none, half of them, nearly all.
SHARES = (0.0, 0.5, 0.9)


class Outcome(StrEnum):
    """
    OK       the tool ran, ONNX Runtime runs what it made, and the outputs are as before
    FAILED   the tool raised an error, or brought its process down
    BROKEN   ONNX Runtime cannot run what it made
    CHANGED  it runs, and returns other numbers, though the tool is not meant to change any
    REFUSED  torch does not export the model, or ONNX Runtime does not run it: there is nothing to run tools on
    """

    OK = "ok"
    FAILED = "failed"
    BROKEN = "broken"
    CHANGED = "changed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Score:
    """How much was found with a share of names hidden.

    nodes         all nodes but literals
    empty         those without a source
    scored        nodes whose name was hidden, and is known from the file; with nothing hidden, all
    contains      those whose true node is among their sources
    told          scored nodes whose module can be told from names
    module        those that are credited to it
    several       nodes that do the work of several modules, by names
    one_only      those that are credited to one module alone
    compared      nodes whose result can be compared with that of a source
    contradicted  those that make something else
    drifted       nodes that a tool of few bits makes less like themselves than like others: not compared
    """

    nodes: int = 0
    empty: int = 0
    scored: int = 0
    contains: int = 0
    told: int = 0
    module: int = 0
    several: int = 0
    one_only: int = 0
    compared: int = 0
    contradicted: int = 0
    drifted: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(Score)))


@dataclass(frozen=True)
class Result:
    """What became of one model after one chain of tools.

    message   what the tool or ONNX Runtime said, where it is not ok
    scores    by the share of names that was hidden
    planted   whether the record inside the file survived
    alone     nodes that get the same modules from the record inside, of all nodes
    wrong     some lines about what was not found
    """

    row: str
    exporter: str
    chain: str
    outcome: Outcome
    message: str = ""
    scores: Mapping[float, Score] = field(default_factory=dict)
    planted: bool = False
    alone: tuple[int, int] = (0, 0)
    wrong: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        scores = {
            str(share): [getattr(score, one.name) for one in fields(Score)] for share, score in self.scores.items()
        }
        return {**vars(self), "scores": scores}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Result:
        scores = {float(share): Score(*counts) for share, counts in content["scores"].items()}
        outcome, alone, wrong = Outcome(content["outcome"]), tuple(content["alone"]), tuple(content["wrong"])
        return cls(**{**content, "scores": scores, "outcome": outcome, "alone": alone, "wrong": wrong})


def summed(results: Iterable[Result], share: float) -> Score:
    return sum((result.scores[share] for result in results if share in result.scores), Score())
