"""The rows of models.toml: what is built, what must come out, and what came out.

A table of settings may say `like = "name"`: it then starts from `[sizes.name]`, and its own keys go over that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from measure.results import RowResult

EXPORTERS = ("dynamo", "torchscript")
# Applies to architectures of its library alone, and to those of them that it can export.
TRANSFORMERS = "transformers"
MANIFEST = Path(__file__).with_name("models.toml")
HAND_MADE = "hand-made"
FAMILIES = (
    "encoder",
    "decoder",
    "mixture of experts",
    "state space",
    "seq2seq",
    "vision",
    "detection",
    "segmentation",
    "audio",
    "speech",
    "multi-modal",
    "time series",
    "document",
    HAND_MADE,
)

Setting: TypeAlias = "str | int | float | bool | Sequence[Setting] | Mapping[str, Setting]"
Settings: TypeAlias = Mapping[str, Setting]


class Outcome(StrEnum):
    """The end of one attempt.

    OK          exported; the numbers agree; every node is credited, none to a wrong module call
    DIVERGES    exported, but its numbers are not those of PyTorch; the reason names the first module call that is wrong
    UNRUNNABLE  exported, but ONNX Runtime cannot run the file
    RANDOM      exported, but the model itself gives other numbers each time
    REFUSED     torch cannot export it
    DEFECT      a node is credited to a wrong module call or to none, or verify cannot run what can be run;
                nothing that a row may expect
    CRASHED     the worker broke down, or modelexport raised what it should not
    TIMED_OUT   the worker was cut off at its limit
    """

    OK = "ok"
    DIVERGES = "diverges"
    UNRUNNABLE = "unrunnable"
    RANDOM = "random"
    REFUSED = "refused"
    DEFECT = "defect"
    CRASHED = "crashed"
    TIMED_OUT = "timed out"


@dataclass(frozen=True)
class Expected:
    """What a row says of one exporter: the outcome, and the stable beginning of its reason where it is not `ok`.

    because  why that is so, for readers
    outcome  None: nothing is said of it but that it is no defect
    """

    outcome: Outcome | None
    reason: str = ""
    because: str = ""


# Outcomes that are defects of this project are mended, never expected.
_EXPECTABLE = {item.value: item for item in (Outcome.DIVERGES, Outcome.UNRUNNABLE, Outcome.RANDOM, Outcome.REFUSED)}
_DEFECTIVE = (Outcome.DEFECT, Outcome.CRASHED, Outcome.TIMED_OUT)
_KEYS = {"name", "family", "class", "config_class", "config", "inputs", *EXPORTERS, TRANSFORMERS}


@dataclass(frozen=True)
class Proof:
    """How many nodes each verdict was given to. `compute` are those that make floats from the model's inputs.

    open       why compute nodes are neither proved nor enclosed, and how many of them
    open_rest  the same of all other nodes
    shown_by   what proves or encloses nodes, and how many of them
    """

    nodes: int = 0
    proved: int = 0
    enclosed: int = 0
    not_provable: int = 0
    contradicted: int = 0
    unattributed: int = 0
    compute: int = 0
    compute_shown: int = 0
    open: Mapping[str, int] = field(default_factory=dict)
    open_rest: Mapping[str, int] = field(default_factory=dict)
    shown_by: Mapping[str, int] = field(default_factory=dict)

    @property
    def shown(self) -> int:
        return self.proved + self.enclosed


@dataclass(frozen=True)
class Result(RowResult):
    """What one attempt gave. `defects` has a line for each node that is contradicted or credited to nobody."""

    outcome: Outcome
    reason: str = ""
    proof: Proof | None = None
    defects: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Result:
        proof = None if content["proof"] is None else Proof(**content["proof"])
        outcome, defects = Outcome(content["outcome"]), tuple(content["defects"])
        return cls(**{**content, "outcome": outcome, "proof": proof, "defects": defects})


def describe_change(expected: Expected, result: Result) -> str:
    """How a result differs from what its row says; empty where it does not."""
    if expected.outcome is None:
        return f"a defect: {_describe(result.outcome, result.reason)}" if result.outcome in _DEFECTIVE else ""
    if result.outcome is not expected.outcome:
        return (
            f"expected {_describe(expected.outcome, expected.reason)}, found {_describe(result.outcome, result.reason)}"
        )
    # A module call is one or another; a message may go on in another way.
    same = str.__eq__ if result.outcome is Outcome.DIVERGES else str.startswith
    if not same(result.reason, expected.reason):
        return f"{result.outcome} for another reason: expected {expected.reason!r}, found {result.reason!r}"
    return ""


def cut_reason(expected: Expected, result: Result) -> Result:
    """The result with its reason cut to what the row calls stable: the rest of a message may change with every run."""
    is_open = expected.outcome is None or describe_change(expected, result)
    return result if is_open else replace(result, reason=expected.reason)


def _describe(outcome: Outcome, reason: str) -> str:
    return f"{outcome} ({reason})" if reason else str(outcome)


class ManifestInvalid(Exception):
    """A row that says too little, or something that nobody understands."""


@dataclass(frozen=True)
class Row:
    """One model.

    model_class  a class of transformers, or `module.Class` under measure.corpus.networks
    config       keywords of `config_class`; without one the class is made without arguments
    inputs       `name=SHAPE[:DTYPE]` for inputs that are not made as they are by default
    expected     by exporter
    """

    name: str
    family: str
    model_class: str
    expected: Mapping[str, Expected]
    config_class: str = ""
    config: Settings = field(default_factory=dict)
    inputs: tuple[str, ...] = ()

    @property
    def hand_made(self) -> bool:
        return self.family == HAND_MADE

    @property
    def exporters(self) -> tuple[str, ...]:
        """Those that the row is exported by."""
        return tuple(self.expected)


def read_rows(path: Path = MANIFEST) -> tuple[Row, ...]:
    """All rows, in the order of the file."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    sizes = content.get("sizes", {})
    architectures = [_read_row(item, sizes) for item in content.get("model", ())]
    networks = [_read_row({"family": HAND_MADE, **item}, sizes) for item in content.get("network", ())]
    rows = (*architectures, *networks)
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ManifestInvalid(f"rows with the same name: {', '.join(twice)}")
    return rows


def _read_row(item: Mapping[str, Any], sizes: Mapping[str, Settings]) -> Row:
    name = item.get("name", "a row without a name")
    try:
        return _parse_row(item, sizes)
    except (KeyError, ValueError) as error:
        raise ManifestInvalid(f"{name}: {error}") from error


def _parse_row(item: Mapping[str, Any], sizes: Mapping[str, Settings]) -> Row:
    if unknown := sorted(set(item) - _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r}")
    if item["family"] not in FAMILIES:
        raise ValueError(f"unknown family {item['family']!r}")
    return Row(
        name=item["name"],
        family=item["family"],
        model_class=item["class"],
        expected=_read_all_expected(item),
        config_class=item.get("config_class", ""),
        config=complete_settings(item.get("config", {}), sizes),
        inputs=tuple(item.get("inputs", ())),
    )


def _read_all_expected(item: Mapping[str, Any]) -> dict[str, Expected]:
    expected = {exporter: _read_expected(item[exporter]) for exporter in EXPORTERS}
    if item["family"] == HAND_MADE:
        return expected
    stated = item.get(TRANSFORMERS)
    return {**expected, TRANSFORMERS: Expected(None) if stated is None else _read_expected(stated)}


def _read_expected(stated: str | Mapping[str, str]) -> Expected:
    """`"ok"`, or `{ refused = "the reason that torch gives" }`."""
    if isinstance(stated, str):
        return Expected(_read_outcome(stated))
    outcomes = [key for key in stated if key != "because"]
    if len(outcomes) != 1 or outcomes[0] not in _EXPECTABLE:
        raise ValueError(f"one of {', '.join(_EXPECTABLE)} is expected, not {', '.join(outcomes) or 'nothing'}")
    reason = stated[outcomes[0]]
    if not reason.strip():
        raise ValueError(f"{outcomes[0]!r} has no reason")
    return Expected(_EXPECTABLE[outcomes[0]], reason, stated.get("because", ""))


def _read_outcome(stated: str) -> Outcome:
    if stated != Outcome.OK:
        raise ValueError(f"{stated!r} is neither 'ok' nor a table with a reason")
    return Outcome.OK


def complete_settings(settings: Settings, sizes: Mapping[str, Settings]) -> Settings:
    """Settings with `like` replaced by what it stands for, at every depth."""
    own = {
        key: complete_settings(value, sizes) if isinstance(value, Mapping) else value for key, value in settings.items()
    }
    like = own.pop("like", None)
    return own if like is None else {**complete_settings(sizes[str(like)], sizes), **own}
