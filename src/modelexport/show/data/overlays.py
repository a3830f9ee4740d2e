"""Overlays: what `profile` and `verify` found, read back from the JSON that they write, to be laid over a model.

The page (`view --overlay`) and Model Explorer (`convert --overlay`) colour modules and nodes by it. A document is known
by a key that no other result has: `sum_check` is that of a profile, `numbers_agree` that of a verification. It need not
be of the very file that is shown; but it must name modules that the model has, with the same classes.

A new overlay is a class here, with the function that reads it and a branch in `_parse_overlay`; a branch and columns in
`show/page/data.py` and `modules.py`, colours in `colours.js`; a branch in `show/formats/node_data.py`.

    profile.json                              Profiled
    {"path": "encoder.layer.0",               own["encoder.layer.0"] == 41.5
     "self_us": 41.5, …}
    {"key": "node_add", "time_us": 4.1,       kernels[3].owners == {"encoder.layer.0"}
     "modules": ["encoder.layer.0#0"], …}

Every value is checked for its type while it is read: the files come from wherever the user has them from, and the page
would show what is in them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelexport.errors import FileUnreadable
from modelexport.graph.related import ensure_same_model
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.json_reading import read_json
from modelexport.record.results.verification import Status, Verdict

_SCHEMA = 1  # the one that `results.py` writes
# What reading a document raises that has the right keys and something else in them.
_DAMAGE = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True)
class KernelTime:
    """A node of the graph that ran, in microseconds of one run. ONNX Runtime may have made it of several nodes.

    charged_to  the path of the module that has its time; None if that is not known
    owners      the paths of the modules whose work it does
    unclear     it may have been another node just as well: the profile does not tell them apart
    """

    key: str
    time: float
    charged_to: str | None
    owners: frozenset[str]
    unclear: bool


@dataclass(frozen=True)
class Profiled:
    """`own`: microseconds in one run by module path, without the modules inside of it; None is no module."""

    file: str
    run: str
    own: Mapping[str | None, float]
    classes: Mapping[str, str]
    kernels: tuple[KernelTime, ...]
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> Mapping[str, float]:
        return {kernel.key: kernel.time for kernel in self.kernels if not kernel.unclear}


@dataclass(frozen=True)
class CallVerdict:
    """One call.

    sqnr     in decibels: infinite for equal tensors, 0 for those that hold no numbers, None where nothing was compared
    max_abs  None also where the largest difference is no number
    agrees   whether it is within the tolerance; None where nothing was compared
    """

    status: Status
    sqnr: float | None
    max_abs: float | None
    agrees: bool | None
    reason: str


@dataclass(frozen=True)
class Verified:
    """`nodes`: by key; empty if another graph than that of the file was judged, or attributions were not proved."""

    file: str
    reference: str
    calls: Mapping[ModuleCall, CallVerdict]
    classes: Mapping[str, str]
    nodes: Mapping[str, Verdict]
    notes: tuple[str, ...] = ()


Overlay = Profiled | Verified


def read_overlay(path: Path, hierarchy: Hierarchy) -> Overlay:
    """The overlay in a file; an error if it is none, or is about modules that the model does not have."""
    try:
        document = read_json(path)
    except OSError as error:
        raise FileUnreadable.from_os_error(path, error) from error
    except ValueError as error:
        raise FileUnreadable(f"{path} is not JSON: {error}", "Write it again with `--format json`.") from error
    try:
        overlay = _parse_overlay(document)
    except _DAMAGE as error:
        raise FileUnreadable(
            f"{path} cannot be read: {type(error).__name__}: {error}", "Write it again with `--format json`."
        ) from error
    if overlay is None:
        raise FileUnreadable(
            f"{path} is neither a profile nor a verification",
            "Write one with `modelexport profile --format json` or `modelexport verify --format json`.",
        )
    ensure_same_model(hierarchy, overlay.classes, path)
    return overlay


def _parse_overlay(document: object) -> Overlay | None:
    """None for a document that is neither; ValueError for one that a later version wrote."""
    if not isinstance(document, dict):
        return None
    is_profile, is_verification = "sum_check" in document, "numbers_agree" in document
    if not (is_profile or is_verification):
        return None
    if document["schema"] != _SCHEMA:
        raise ValueError(f"its schema is {document['schema']!r}, and {_SCHEMA} is the one that is known")
    return _profiled(document) if is_profile else _verified(document)


def _profiled(document: dict[str, Any]) -> Profiled:
    """Times of modules are those of their own nodes: the page adds up what is inside by itself."""
    modules = document["modules"]
    return Profiled(
        file=_text(document["file"]),
        run=f"{int(document['runs'])} runs, optimization {_text(document['optimization'])}",
        own={_optional_text(item["path"]): _amount(item["self_us"]) for item in modules},
        classes={_text(item["path"]): _text(item["class"]) for item in modules if item["path"] is not None},
        kernels=tuple(map(_kernel, document["nodes"])),
        notes=(*map(_text, document["notes"]), *_describe_noise(document)),
    )


def _describe_noise(document: dict[str, Any]) -> Iterator[str]:
    """Files of earlier versions do not say how noisy they are."""
    noise = _number(document.get("noise"))
    if not document.get("rankable", True):
        open_share = "" if noise is None else f": the runs leave open where {noise:.0%} of the time goes"
        yield f"times are too noisy to rank modules{open_share}"


def _kernel(item: dict[str, Any]) -> KernelTime:
    """A kernel that does the work of several calls of one module has that module as owner once."""
    owners = frozenset(ModuleCall.parse(_text(owner)).path for owner in item["modules"])
    # None: it belongs to no module; the empty path is the model itself.
    charged_to = _optional_text(item["charged_to"])
    return KernelTime(_text(item["key"]), _amount(item["time_us"]), charged_to, owners, bool(item["others"]))


def _verified(document: dict[str, Any]) -> Verified:
    """Calls are told apart by path and number: one module may agree in its first call and not in its second."""
    proof = document["proof"]
    # Nodes of the graph that ONNX Runtime made of the file are other nodes than those of the file.
    nodes = [] if proof is None or document["as_deployed"] else proof["nodes"]
    return Verified(
        file=_text(document["file"]),
        reference=_text(document["reference"]),
        calls={ModuleCall(_text(item["path"]), int(item["call"])): _call(item) for item in document["calls"]},
        classes={_text(item["path"]): _text(item["class"]) for item in document["calls"]},
        nodes={_text(item["key"]): Verdict(item["verdict"]) for item in nodes},
        notes=tuple(map(_text, document["notes"])),
    )


def _call(item: dict[str, Any]) -> CallVerdict:
    status, reason, outputs = Status(item["status"]), _text(item["reason"]), item["outputs"]
    if outputs is None:
        return CallVerdict(status, None, None, None, reason)
    # JSON has no infinity, so that null stands for equal tensors and for NaN alike; `equal` tells them apart.
    sqnr = math.inf if outputs["equal"] else _number(outputs["sqnr"]) or 0.0
    return CallVerdict(status, sqnr, _number(outputs["max_abs"]), bool(outputs["agrees"]), reason)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} stands where a text should")
    return value


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _number(value: object) -> float | None:
    """`True` is an int for Python, and no number of a document."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} stands where a number should")
    return float(value)


def _amount(value: object) -> float:
    """A negative time would turn the gradient of colours round."""
    number = _number(value)
    if number is None or number < 0:
        raise ValueError(f"{value!r} stands where a time should")
    return number
