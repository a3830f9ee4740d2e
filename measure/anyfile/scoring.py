"""Scores: what a file says about its nodes, against the record of the export that it was made from.

    truth                         answer                 verdict
    encoder.fc                    encoder.fc             right
    block.conv, block.bn          block.conv, or block   right: a part of the owners, or the module around all of them
    encoder.fc                    encoder                too shallow: around the true one
    encoder.fc                    decoder.fc             wrong
    encoder.fc                    (model), `fallback`    fallback: nothing is known, and that is what it says

Calls are not compared, as files have paths only.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from modelexport.record.hierarchy import ROOT, Hierarchy, lineage_of
from modelexport.record.provenance import Attribution, Confidence, Provenance, is_within


class Verdict(StrEnum):
    RIGHT = "right"
    SHALLOW = "too shallow"
    WRONG = "wrong"
    FALLBACK = "fallback"


@dataclass(frozen=True)
class Score:
    """How many nodes of a file are answered, and how.

    nodes         those whose module is known
    unknown       those of which the record itself knows nothing: not scored
    wrong_strong  too shallow or wrong, and said with `strong` or `exact` confidence
    class_right   those whose answer has the class of the true module
    class_known   those whose answer has a class, not a description
    named         those whose module occurs in the name of a parameter that is stored in the file
    """

    nodes: int = 0
    right: int = 0
    shallow: int = 0
    wrong: int = 0
    fallback: int = 0
    unknown: int = 0
    wrong_strong: int = 0
    class_right: int = 0
    class_known: int = 0
    named: int = 0

    def __add__(self, other: Score) -> Score:
        return Score(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(Score)))


@dataclass(frozen=True)
class Miss:
    """A node that is not answered right. `evidence` is what the answer rests on."""

    verdict: Verdict
    confidence: str
    op_type: str
    node: str
    answer: str
    truth: str
    evidence: str

    def __str__(self) -> str:
        answer = f"{self.answer} ({self.confidence}; {self.evidence})"
        return f"{self.verdict}: {self.op_type} {self.node} is {self.truth}, not {answer}"


def judge_answer(answer: Attribution, truth: Attribution, hierarchy: Hierarchy) -> Verdict:
    """
    hierarchy  of the truth: paths of one module under several names are the same
    """
    if answer.confidence <= Confidence.FALLBACK or answer.ancestor is None:
        return Verdict.FALLBACK
    true_paths = {_own_path(owner.path, hierarchy) for owner in truth.owners}
    paths = {_own_path(owner.path, hierarchy) for owner in answer.owners}
    module, true_module = _own_path(answer.ancestor.path, hierarchy), hierarchy.common_module(truth.owners) or ""
    if paths <= true_paths or (len(true_paths) > 1 and module == true_module):
        return Verdict.RIGHT
    is_around = bool(true_module) and all(is_within(true_module, path) for path in paths)
    return Verdict.SHALLOW if is_around else Verdict.WRONG


def _own_path(path: str, hierarchy: Hierarchy) -> str:
    """The first name of a module that has several."""
    return hierarchy.canonical.get(path, path)


def has_true_class(class_name: str, truth: Attribution, hierarchy: Hierarchy) -> bool:
    """Whether a class, empty if unknown, is that of a true owner, or of the module around all of them."""
    true_paths = [*(owner.path for owner in truth.owners), hierarchy.common_module(truth.owners) or ""]
    classes = {hierarchy.modules[path].class_name for path in true_paths if path in hierarchy.modules}
    return bool(class_name) and class_name in classes


def score_record(
    answers: Provenance, truth: Provenance, true_keys: Mapping[str, str] | None = None
) -> tuple[Score, list[Miss]]:
    """
    answers    what was found in a file
    true_keys  by key of a node in the file: its key in the record, where names are not the same
    """
    total, misses = Score(), []
    named = _named_modules(answers, truth.hierarchy)
    for key, entry in answers.nodes.items():
        true = truth.recorded(key if true_keys is None else true_keys[key])
        if true.confidence <= Confidence.FALLBACK or not true.owners:
            total += Score(unknown=1)
            continue
        answer = entry.attribution
        verdict = judge_answer(answer, true, truth.hierarchy)
        total += _count(verdict, answer, _class_of(answer, answers.hierarchy), true, truth.hierarchy)
        total += Score(named=int(any(owner.path in named for owner in true.owners)))
        if verdict is not Verdict.RIGHT:
            misses.append(_describe_miss(verdict, entry.op_type, entry.name or key, answer, true))
    return total, misses


def _named_modules(answers: Provenance, truth: Hierarchy) -> frozenset[str]:
    """Modules whose path is a part of the name of a stored parameter, the root among them."""
    holders = (path for name in answers.initializers for path in truth.tensor_owners.get(name, ()))
    return frozenset(above for path in (ROOT, *holders) for above in lineage_of(path))


def _class_of(answer: Attribution, hierarchy: Hierarchy) -> str:
    module = None if answer.ancestor is None else hierarchy.modules.get(answer.ancestor.path)
    is_known = module is not None and module.is_class_known and answer.confidence > Confidence.FALLBACK
    return module.class_name if module is not None and is_known else ""


def _count(verdict: Verdict, answer: Attribution, class_name: str, truth: Attribution, hierarchy: Hierarchy) -> Score:
    is_right = verdict is Verdict.RIGHT
    return Score(
        nodes=1,
        right=int(is_right),
        shallow=int(verdict is Verdict.SHALLOW),
        wrong=int(verdict is Verdict.WRONG),
        fallback=int(verdict is Verdict.FALLBACK),
        wrong_strong=int(answer.confidence >= Confidence.STRONG and not is_right),
        class_right=int(has_true_class(class_name, truth, hierarchy)),
        class_known=int(bool(class_name)),
    )


def _describe_miss(verdict: Verdict, op_type: str, node: str, answer: Attribution, truth: Attribution) -> Miss:
    return Miss(
        verdict=verdict,
        confidence=answer.confidence.label,
        op_type=op_type,
        node=node,
        answer=_list_paths(owner.path for owner in answer.owners),
        truth=_list_paths(owner.path for owner in truth.owners),
        evidence="; ".join(map(str, answer.evidence)),
    )


def _list_paths(paths: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(path or "(model)" for path in paths)) or "nobody"
