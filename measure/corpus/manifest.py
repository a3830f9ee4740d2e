"""The rows of models.toml: what is built, and what must hold for it.

A table of settings may say `like = "name"`: it then starts from `[sizes.name]`, and its own keys go over that.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from measure.corpus.outcome import EXPORTERS, Expected, Outcome

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

# Outcomes that are defects of this project are mended, never expected.
_EXPECTABLE = {item.value: item for item in (Outcome.DIVERGES, Outcome.UNRUNNABLE, Outcome.RANDOM, Outcome.REFUSED)}
_KEYS = {"name", "family", "class", "config_class", "config", "inputs", *EXPORTERS}


class ManifestInvalid(Exception):
    """A row that says too little, or something that nobody understands."""


@dataclass(frozen=True)
class Row:
    """One model.

    model_class  a class of transformers, or `module.Class` under corpus.networks
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


def read_rows(path: Path = MANIFEST) -> tuple[Row, ...]:
    """All rows, in the order of the file."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    sizes = content.get("sizes", {})
    architectures = [_row(item, sizes) for item in content.get("model", ())]
    networks = [_row({"family": HAND_MADE, **item}, sizes) for item in content.get("network", ())]
    rows = (*architectures, *networks)
    names = [row.name for row in rows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ManifestInvalid(f"rows with the same name: {', '.join(twice)}")
    return rows


def _row(item: Mapping[str, Any], sizes: Mapping[str, Settings]) -> Row:
    name = item.get("name", "a row without a name")
    try:
        return _parsed(item, sizes)
    except (KeyError, ValueError) as error:
        raise ManifestInvalid(f"{name}: {error}") from error


def _parsed(item: Mapping[str, Any], sizes: Mapping[str, Settings]) -> Row:
    if unknown := sorted(set(item) - _KEYS):
        raise ValueError(f"unknown key {unknown[0]!r}")
    if item["family"] not in FAMILIES:
        raise ValueError(f"unknown family {item['family']!r}")
    return Row(
        name=item["name"],
        family=item["family"],
        model_class=item["class"],
        expected={exporter: _expected(item[exporter]) for exporter in EXPORTERS},
        config_class=item.get("config_class", ""),
        config=_complete(item.get("config", {}), sizes),
        inputs=tuple(item.get("inputs", ())),
    )


def _expected(stated: str | Mapping[str, str]) -> Expected:
    """`"ok"`, or `{ refused = "the reason that torch gives" }`."""
    if isinstance(stated, str):
        return Expected(_fine(stated))
    outcomes = [key for key in stated if key != "because"]
    if len(outcomes) != 1 or outcomes[0] not in _EXPECTABLE:
        raise ValueError(f"one of {', '.join(_EXPECTABLE)} is expected, not {', '.join(outcomes) or 'nothing'}")
    reason = stated[outcomes[0]]
    if not reason.strip():
        raise ValueError(f"{outcomes[0]!r} has no reason")
    return Expected(_EXPECTABLE[outcomes[0]], reason, stated.get("because", ""))


def _fine(stated: str) -> Outcome:
    if stated != Outcome.OK:
        raise ValueError(f"{stated!r} is neither 'ok' nor a table with a reason")
    return Outcome.OK


def _complete(settings: Settings, sizes: Mapping[str, Settings]) -> Settings:
    """Settings with `like` replaced by what it stands for, at every depth."""
    own = {key: _complete(value, sizes) if isinstance(value, Mapping) else value for key, value in settings.items()}
    like = own.pop("like", None)
    return own if like is None else {**_complete(sizes[str(like)], sizes), **own}
