"""Inputs and outputs under other names: which are the same, by what is made of them and how they are made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from modelexport.diffing.ends import ValueType, named_alike, paired_ends
from modelexport.diffing.flow import COMMUTATIVE
from modelexport.diffing.sides import Compared
from modelexport.diffing.signatures import Numbers, Signatures, by_content, by_shape

_Ends = Mapping[str, ValueType | None]


@dataclass(frozen=True, slots=True)
class Ends:
    """Inputs and outputs of the first graph, mapped to what they are in the second."""

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def find_ends(left: Compared, right: Compared) -> Ends:
    """By name; then by what they are for; the rest by type and order."""
    inputs, outputs = named_alike(left.inputs, right.inputs), named_alike(left.outputs, right.outputs)
    several = _are_several(left.inputs, right.inputs, inputs) or _are_several(left.outputs, right.outputs, outputs)
    for seen in (by_content, by_shape) if several else ():
        numbers = Numbers()
        signatures = [
            Signatures(side.flow, numbers, seen, _labels(side, place, inputs, outputs))
            for place, side in enumerate((left, right))
        ]
        inputs |= _matched(left.inputs, right.inputs, inputs, [_use_of(one) for one in signatures])
        outputs |= _matched(left.outputs, right.outputs, outputs, [_result_of(one) for one in signatures])
    return Ends(
        paired_ends(left.inputs, right.inputs, inputs),
        paired_ends(left.outputs, right.outputs, outputs),
    )


def _are_several(one: _Ends, other: _Ends, known: Mapping[str, str]) -> bool:
    """Whether it is open which is which."""
    rest = len(one) - len(known), len(other) - len(known)
    return min(rest) > 0 and max(rest) > 1


def _labels(side: Compared, place: int, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> dict[str, object]:
    """What is known to be the same has one label in both files; of the rest the type is all that can be said."""
    found: dict[str, object] = {}
    for kind, ends, known in (("i", side.inputs, inputs), ("o", side.outputs, outputs)):
        same = {pair[place]: pair[0] for pair in known.items()}
        for name, stated in ends.items():
            rank = None if stated is None or stated.dims is None else len(stated.dims)
            found[f"{kind}:{name}"] = same.get(name, (stated and stated.dtype, rank))
    return found


def _matched(
    one: _Ends, other: _Ends, known: Mapping[str, str], words: Iterable[Callable[[str], object]]
) -> dict[str, str]:
    """Those of which there is one in each file."""
    mine_of, theirs_of = words
    taken = set(known.values())
    mine = {name: mine_of(name) for name in one if name not in known}
    theirs = {name: theirs_of(name) for name in other if name not in taken}
    counts = Counter(mine.values()), Counter(theirs.values())
    single = {word: name for name, word in theirs.items() if counts[1][word] == 1}
    return {name: single[word] for name, word in mine.items() if counts[0][word] == 1 and word in single}


def _result_of(signatures: Signatures) -> Callable[[str], object]:
    return signatures.down.get


def _use_of(signatures: Signatures) -> Callable[[str], object]:
    def found(value: str) -> object:
        uses = signatures.flow.uses.get(value, ())
        return tuple(
            sorted(
                (0 if use.reader.op_type in COMMUTATIVE else use.place, signatures.own[key], signatures.up[key])
                for use in uses
                for key in [use.reader.key]
            )
        )

    return found
