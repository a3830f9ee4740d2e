"""Mutations of JSON: records packed in a model, sidecars, descriptions of packages, overlays, configurations."""

from __future__ import annotations

import json
from collections.abc import Iterator
from random import Random
from typing import Any

from measure.fuzzing.mutate_messages import INTEGERS, TEXTS, mutate_bytes
from modelexport.record.packed import squeeze, squeeze_bzip2, unsqueeze, unsqueeze_bzip2

_VALUES: tuple[Any, ...] = (
    None, True, False, [], {}, [[]], {"": ""}, [None], 0.5, 1e308, float("inf"), float("nan"), "\ud800",
    *INTEGERS, *TEXTS,
)  # fmt: skip
_LONG = 3000

Place = tuple[Any, Any]


def mutate_document(document: Any, random: Random) -> Any:
    """A few values of a document changed."""
    holder = [document]
    for _ in range(random.choice((1, 1, 2, 3, 8))):
        places = list(_walk(holder, 0))
        _mutate_value(*random.choice(places), places, random)
        holder = holder or [None]
    return holder[0]


def _walk(value: Any, depth: int) -> Iterator[Place]:
    """Where values are: the list or object, and the index or key in it."""
    if depth > 40:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inside in items:
        yield value, key
        yield from _walk(inside, depth + 1)


def _mutate_value(holder: Any, key: Any, places: list[Place], random: Random) -> None:
    match random.randrange(8):
        case 0 | 1:
            holder[key] = random.choice(_VALUES)
        case 2 if isinstance(holder[key], int):
            holder[key] += random.choice((-1, 1, 1000))
        case 3 if len(places) > 1:
            del holder[key]
        case 4 if isinstance(holder, list):
            holder[key:key] = [holder[key]] * random.choice((1, 2, _LONG))
        case 5:
            other, there = random.choice(places)
            # Through JSON, because a value inside of itself would be no document.
            holder[key] = json.loads(json.dumps(other[there]))
        case 6 if isinstance(holder, dict):
            holder[random.choice(TEXTS)] = holder.pop(key)
        case 7:
            holder[key] = _nest(random)
        case _:
            holder[key] = random.choice(_VALUES)


def _nest(random: Random) -> Any:
    value: Any = random.choice(_VALUES)
    for _ in range(random.choice((3, 30, 200))):
        value = [value] if random.random() < 0.5 else {"": value}
    return value


def mutate_json_file(data: bytes, random: Random) -> bytes:
    try:
        document = json.loads(data)
    except ValueError:
        return mutate_bytes(data, random)
    if random.random() < 0.05:
        return b"[" * random.choice((500, 50_000)) + b"]" * random.choice((0, 500, 50_000))
    return json.dumps(mutate_document(document, random)).encode()


def mutate_packed(text: str, random: Random) -> str:
    """Decode, tamper, encode: `modelexport-record-2:…` of a record or an outline; version 1 has bzip2."""
    name, _, payload = text.partition(":")
    is_first = name.endswith("-1")
    content = unsqueeze_bzip2(payload) if is_first else unsqueeze(payload)
    if isinstance(content, dict) and "modules" in content and random.random() < 0.15:
        content["modules"] = _unfolding_modules(random)
    else:
        content = mutate_document(content, random)
    return f"{name}:{squeeze_bzip2(content) if is_first else squeeze(content)}"


def _unfolding_modules(random: Random) -> dict[str, Any]:
    """Modules whose paths are far longer together than what is stored: a chain, or many below a long name."""
    count = random.choice((30, 300, _LONG, 20_000))
    name = "m" * random.choice((1, 10, 1000))
    is_chain = random.random() < 0.6
    parents = [-1, *(range(count) if is_chain else [0] * count)]
    names = ["", *(name if is_chain else f"{name}{number}" for number in range(count))]
    row = ["Linear", "torch.nn.modules.linear", [], [], [], False]
    return {"parents": parents, "names": names, "rows": [0] * (count + 1), "aliases": {}, "row_table": [row]}
