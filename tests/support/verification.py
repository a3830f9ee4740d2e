"""What `verify` could answer with, made by hand and at random."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import (
    AttributionProof,
    CallNumbers,
    Difference,
    Divergence,
    Fault,
    NodeProof,
    NotFinite,
    ParameterCheck,
    ParameterDifference,
    Status,
    SuddenLoss,
    Tolerance,
    Verdict,
    Verification,
)

EVIL = "[bold]=\x1b[2J\x07\u202e\n"


def difference(sqnr: float = 131.0, *, agrees: bool | None = None, unlike: int = 0) -> Difference:
    """As large as the decibels say. Agrees from 100 dB on, unless said otherwise."""
    noise = 0.0 if sqnr == math.inf else 10 ** (-sqnr / 20)
    return Difference(noise, noise, sqnr, 1 - noise / 2, unlike, sqnr >= 100 if agrees is None else agrees)


def numbers(
    call: str,
    given: float | None = 131.0,
    returned: float | None = 131.0,
    *,
    class_name: str = "Linear",
    reason: str = "",
) -> CallNumbers:
    """A module call by the decibels of what it was given and what it returned; None where nothing was compared."""
    inputs = None if given is None else difference(given)
    outputs = None if returned is None else difference(returned)
    return CallNumbers(ModuleCall.parse(call), class_name, inputs, outputs, _status(inputs, outputs), reason)


def _status(inputs: Difference | None, outputs: Difference | None) -> Status:
    if outputs is None:
        return Status.NOT_COMPARED
    if outputs.agrees:
        return Status.OK
    return Status.DIVERGES if inputs is None or inputs.agrees else Status.FOLLOWS


def node(
    key: str, verdict: Verdict, claimed: str = "fc", issued: str = "fc", reason: str = "", *, compute: bool = True
) -> NodeProof:
    calls = (() if not text else (ModuleCall.parse(text),) for text in (claimed, issued))
    fault = Fault.ANOTHER_MODULE if verdict is Verdict.CONTRADICTED else None
    return NodeProof(key, f"node_{key}", "MatMul", next(calls), verdict, reason, next(calls), compute, fault)


def verification(*calls: CallNumbers, output: Difference | None = None) -> Verification:
    """Of nothing but these calls; what more there is to say is put in with `dataclasses.replace`."""
    return Verification("a.onnx", "./net", 1, Tolerance(), calls, {"y": output or difference()})


def wrong_in(path: str, *calls: CallNumbers) -> Verification:
    """A file whose numbers go wrong in one module."""
    found = Divergence((ModuleCall(path),), ("Linear",), "h3", difference(118.0), difference(21.0))
    return replace(verification(*calls, output=difference(20.0)), divergence=found)


# At random, with everything that may be there and everything that may be missing.

TEXT = st.text(max_size=8)
NUMBER = st.floats(allow_nan=True, allow_infinity=True)
COUNT = st.integers(0, 10**6)
CALLS = st.builds(ModuleCall, st.sampled_from(["", "a", "a.b", "a.c", "d", EVIL]), st.integers(0, 3))
DIFFERENCES = st.builds(Difference, NUMBER, NUMBER, NUMBER, NUMBER, COUNT, st.booleans())
NODES = st.builds(
    NodeProof,
    TEXT,
    TEXT,
    TEXT,
    st.lists(CALLS, max_size=2).map(tuple),
    st.sampled_from(Verdict),
    TEXT,
    st.lists(CALLS, max_size=2).map(tuple),
    st.booleans(),
    st.sampled_from(Fault),
)


@st.composite
def _divergences(draw: st.DrawFn) -> Divergence:
    calls = tuple(draw(st.lists(CALLS, max_size=3)))
    classes = tuple(draw(TEXT) for _ in calls)
    return Divergence(calls, classes, draw(TEXT), draw(st.none() | DIFFERENCES), draw(DIFFERENCES))


CALL_NUMBERS = st.builds(
    CallNumbers, CALLS, TEXT, st.none() | DIFFERENCES, st.none() | DIFFERENCES, st.sampled_from(Status), TEXT
)
PARAMETERS = st.builds(
    ParameterCheck,
    COUNT,
    st.lists(st.builds(ParameterDifference, TEXT, TEXT, NUMBER), max_size=8).map(tuple),
)
VERIFICATIONS = st.builds(
    Verification,
    file=TEXT,
    reference=TEXT,
    samples=COUNT,
    tolerance=st.builds(Tolerance, st.none() | NUMBER, st.none() | NUMBER, st.none() | NUMBER),
    calls=st.lists(CALL_NUMBERS, max_size=6).map(tuple),
    outputs=st.dictionaries(TEXT, DIFFERENCES, max_size=2),
    divergence=st.none() | _divergences(),
    not_finite=st.lists(
        st.builds(
            NotFinite,
            st.sampled_from(["NaN", "Inf"]),
            TEXT,
            st.lists(CALLS, max_size=2).map(tuple),
            st.booleans(),
        ),
        max_size=2,
    ).map(tuple),
    sudden_losses=st.lists(st.builds(SuddenLoss, CALLS, TEXT, DIFFERENCES, DIFFERENCES), max_size=2).map(tuple),
    parameters=st.none() | PARAMETERS,
    proof=st.none() | st.builds(AttributionProof, st.lists(NODES, max_size=4).map(tuple)),
    notes=st.lists(TEXT, max_size=2).map(tuple),
    seconds=st.dictionaries(TEXT, st.floats(0, 100), max_size=2),
)
