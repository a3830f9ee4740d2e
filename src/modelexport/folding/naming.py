"""What functions, and the values and nodes inside of them, are called."""

from __future__ import annotations

import re
from collections.abc import Iterable

from modelexport.record.hierarchy import ModuleCall

_NOT_IN_IDENTIFIERS = re.compile(r"[^A-Za-z0-9_]+")


class Names:
    """Names that are not taken yet."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._numbers: dict[str, int] = {}

    def free(self, name: str) -> str:
        """The name, with a number behind it if it is taken."""
        found, number = name, self._numbers.get(name, 1)
        while found in self._taken:
            number += 1
            found = f"{name}_{number}"
        self._numbers[name] = number
        self._taken.add(found)
        return found


def identifier(class_name: str) -> str:
    """A class name as ONNX allows it for a function: a hostile one could be anything."""
    name = _NOT_IN_IDENTIFIERS.sub("_", class_name).strip("_") or "Module"
    return f"_{name}" if name[0].isdigit() else name


def relative(name: str, call: ModuleCall) -> str:
    """A name as it is inside of a module: `query.weight` for that of a weight with the path of the module before it.

    Exporters write paths with dots, or as a scope: `/encoder/layer.0/attention/MatMul`.
    """
    scope = "".join(f"/{step}" for step in re.sub(r"\.(?=\d+(\.|$))", "\0", call.path).split(".")).replace("\0", ".")
    for prefix in (f"{call.path}.", f"{scope}/"):
        at = name.find(prefix)
        if call.path and (at == 0 or (at > 0 and name[at - 1] in "./ ")) and len(name) > at + len(prefix):
            return name[at + len(prefix) :]
    return name
