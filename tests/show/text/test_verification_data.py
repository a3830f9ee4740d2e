"""A verification for programs: as JSON, and as CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given
from tests.support.verification import EVIL, VERIFICATIONS, difference, node, numbers, verification, wrong_in

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.verification import (
    AttributionProof,
    Difference,
    NotFinite,
    ParameterCheck,
    ParameterDifference,
    SuddenLoss,
    Tolerance,
    Verdict,
    Verification,
)
from modelexport.show.data.results import to_csv, to_json

TINY = Difference(0.5, 0.25, 21.0, 0.75, 1, False)
FINE = {
    "max_abs": 0.0,
    "max_rel": 0.0,
    "sqnr": None,
    "cosine": 1.0,
    "unlike": 0,
    "equal": True,
    "agrees": True,
    "too_small": False,
}
POOR = {
    "max_abs": 0.5,
    "max_rel": 0.25,
    "sqnr": 21.0,
    "cosine": 0.75,
    "unlike": 1,
    "equal": False,
    "agrees": False,
    "too_small": False,
}


CALL_COLUMNS = (
    *("path", "call", "class", "status", "reason", "lost", "effect"),
    *("in_max_abs", "in_max_rel", "in_sqnr", "in_cosine", "in_unlike", "in_agrees"),
    *("out_max_abs", "out_max_rel", "out_sqnr", "out_cosine", "out_unlike", "out_agrees"),
    "fused_with",
)


def rows(found: Verification) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(found))))


@pytest.fixture
def everything() -> Verification:
    """A file with a wrong second call, other weights, a NaN and a contradicted node."""
    second = replace(numbers("fc#1", math.inf, 21), outputs=TINY)
    idle = numbers("drop", None, None, class_name="Dropout", reason="nothing to do")
    divergence = wrong_in("fc").divergence
    assert divergence is not None
    return replace(
        verification(second, replace(idle, fused_with=(ModuleCall("fc", 1), ModuleCall("")))),
        tolerance=Tolerance(rtol=0.5),
        outputs={"y": TINY},
        missing=("v",),
        skipped=("z",),
        divergence=replace(divergence, calls=(ModuleCall("fc", 1),), inputs=None, outputs=TINY),
        not_finite=(NotFinite("NaN", "h3", (ModuleCall(""),), False),),
        sudden_losses=(SuddenLoss(ModuleCall("fc", 1), "Linear", TINY, TINY),),
        parameters=ParameterCheck(2, (ParameterDifference("fc.weight", "w", math.inf),)),
        proof=AttributionProof(
            (
                node("h3", Verdict.CONTRADICTED, "fc#1", "other", "values of other"),
                node("s", Verdict.NOT_PROVABLE, reason="constant", compute=False),
            )
        ),
        notes=("a note",),
        seconds={"load": 1.23456},
    )


def test_json(everything: Verification) -> None:
    assert json.loads(to_json(everything)) == {
        "schema": 1,
        "file": "a.onnx",
        "reference": "./net",
        "ok": False,
        "numbers_agree": False,
        "samples": 1,
        "as_deployed": False,
        "tolerance": {"atol": None, "rtol": 0.5, "min_sqnr": None},
        "parameters": {
            "compared": 2,
            "differing": [{"name": "fc.weight", "initializer": "w", "max_abs": None}],
            "unknown": [],
        },
        "calls": [
            {
                "path": "fc",
                "call": 1,
                "class": "Linear",
                "status": "diverges",
                "reason": "",
                "fused_with": [],
                "inputs": FINE,
                "outputs": POOR,
                "lost": 119.0,
                "effect": None,
            },
            {
                "path": "drop",
                "call": 0,
                "class": "Dropout",
                "status": "not compared",
                "reason": "nothing to do",
                "fused_with": ["fc#1", ""],
                "inputs": None,
                "outputs": None,
                "lost": None,
                "effect": None,
            },
        ],
        "outputs": {"y": POOR},
        "missing": ["v"],
        "skipped": ["z"],
        "divergence": {
            "modules": ["fc#1"],
            "classes": ["Linear"],
            "node": "h3",
            "name": "",
            "inputs": None,
            "outputs": POOR,
        },
        "not_finite": [{"kind": "NaN", "node": "h3", "modules": [""], "both": False}],
        "sudden_losses": [{"path": "fc", "call": 1, "class": "Linear", "inputs": POOR, "outputs": POOR}],
        "frozen": [],
        "proof": {
            "counts": {"proved": 0, "enclosed": 0, "not provable": 1, "contradicted": 1, "unattributed": 0},
            "faults": {"another module": 1},
            "reasons": {"constant": 1},
            "shown_by": {},
            "compute": 1,
            "compute_shown": 0,
            "nodes": [
                {
                    "name": "node_h3",
                    "key": "h3",
                    "op_type": "MatMul",
                    "verdict": "contradicted",
                    "fault": "another module",
                    "shown_by": None,
                    "claimed": ["fc#1"],
                    "issued": ["other"],
                    "reason": "values of other",
                    "compute": True,
                },
                {
                    "name": "node_s",
                    "key": "s",
                    "op_type": "MatMul",
                    "verdict": "not provable",
                    "fault": None,
                    "shown_by": None,
                    "claimed": ["fc"],
                    "issued": ["fc"],
                    "reason": "constant",
                    "compute": False,
                },
            ],
        },
        "notes": ["a note"],
        "seconds": {"load": 1.235},
    }


def test_equal_is_told_from_nothing_but_noise() -> None:
    found = replace(verification(), outputs={"a": difference(math.inf), "b": replace(TINY, sqnr=-math.inf)})
    outputs = json.loads(to_json(found))["outputs"]
    assert [(item["sqnr"], item["equal"]) for item in outputs.values()] == [(None, True), (None, False)]


def test_csv_has_a_row_for_each_call(everything: Verification) -> None:
    first, second = rows(everything)
    assert tuple(first) == CALL_COLUMNS
    assert [first[name] for name in ("path", "call", "class", "status", "lost")] == [
        *("fc", "1", "Linear", "diverges", "119.0"),
    ]
    assert [first[name] for name in CALL_COLUMNS if name.startswith("out_")] == [
        "0.5",
        "0.25",
        "21.0",
        "0.75",
        "1",
        "false",
    ]
    assert (first["in_sqnr"], first["in_agrees"]) == ("inf", "true")
    assert (second["status"], second["reason"]) == ("not compared", "nothing to do")
    assert (first["fused_with"], second["fused_with"]) == ("", "fc#1;")
    assert {second[name] for name in CALL_COLUMNS if name.startswith(("in_", "out_"))} == {""}


@given(VERIFICATIONS)
def test_numbers_in_a_csv_are_those_that_were_found(found: Verification) -> None:
    for item, row in zip(found.calls, rows(found), strict=True):
        for side, expected in (("in", item.inputs), ("out", item.outputs)):
            for name in ("max_abs", "max_rel", "sqnr", "cosine"):
                text = row[f"{side}_{name}"]
                assert text == "" if expected is None else repr(float(text)) == repr(float(getattr(expected, name)))


def test_names_from_strangers_reach_no_spreadsheet() -> None:
    item = replace(numbers("x"), call=ModuleCall(f"={EVIL}"), class_name=f"+{EVIL}", reason=f"@{EVIL}")
    text = to_csv(verification(item))
    assert all(line.isprintable() for line in text.split("\n"))
    [row] = rows(verification(item))
    assert all(row[name].startswith("'") for name in ("path", "class", "reason"))
