"""The manifest says enough, and says it exactly; a result is what its row says, or it is told."""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

import measure.corpus.networks
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from measure.corpus.networks.network import Network
from measure.corpus.rows import (
    FAMILIES,
    HAND_MADE,
    MANIFEST,
    Expected,
    ManifestInvalid,
    Outcome,
    Result,
    cut_reason,
    describe_change,
    read_rows,
)

ROWS = read_rows()
EXCEPTIONS = [
    (row, exporter, expected)
    for row in ROWS
    for exporter, expected in row.expected.items()
    if expected.outcome not in (Outcome.OK, None)
]


def networks_in_the_rooms() -> set[str]:
    """Every network that can be made: classes below Network that are no rows' common ground."""
    found = set()
    for room in pkgutil.iter_modules(measure.corpus.networks.__path__):
        module = import_module(f"measure.corpus.networks.{room.name}")
        classes = [item for item in vars(module).values() if isinstance(item, type) and issubclass(item, Network)]
        found |= {f"{room.name}.{item.__name__}" for item in classes if item.__module__ == module.__name__}
    return {name for name in found if not name.startswith("network.")}


def test_there_are_enough_rows_of_every_family() -> None:
    families = Counter(row.family for row in ROWS)
    assert families[HAND_MADE] >= 25
    assert families.total() - families[HAND_MADE] >= 60
    assert not [family for family in FAMILIES if families[family] < 3]


def test_every_architecture_is_one_of_transformers() -> None:
    # Listing names is cheap; looking at each of them would import every architecture.
    known = set(dir(transformers))
    wanted = {name for row in ROWS if not row.hand_made for name in (row.model_class, row.config_class)}
    assert not wanted - known


def test_every_network_has_a_row_and_every_row_a_network() -> None:
    assert {row.model_class for row in ROWS if row.hand_made} == networks_in_the_rooms()


# The error and what it says, the node that fails, the module call: nothing that another failure would fit as well.
EXACT = {
    Outcome.REFUSED: r"\w+(Error|Node): .{15,}",
    Outcome.UNRUNNABLE: r"ONNX Runtime cannot run the graph: \w+: \[ONNXRuntimeError\] : \d+ : \w+ : .{30,}",
    Outcome.RANDOM: r"\w+ gives other numbers each time .*, from \S+ on",
    Outcome.DIVERGES: r"\(model\)|[\w.#]+",
}


def test_an_exception_is_stated_exactly() -> None:
    vague = [
        (row.name, exporter, expected.reason)
        for row, exporter, expected in EXCEPTIONS
        if expected.outcome is None or not re.fullmatch(EXACT[expected.outcome], expected.reason)
    ]
    assert not vague


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.REFUSED, Outcome.DIVERGES, Outcome.UNRUNNABLE])
def test_where_nothing_is_said_only_a_defect_is_a_change(outcome: Outcome) -> None:
    assert not describe_change(Expected(None), Result("a", "transformers", outcome, "so"))
    assert describe_change(Expected(None), Result("a", "transformers", Outcome.DEFECT, "so")) == "a defect: defect (so)"


def test_wrong_numbers_are_explained() -> None:
    unexplained = [
        (row.name, exporter)
        for row, exporter, expected in EXCEPTIONS
        if expected.outcome is Outcome.DIVERGES and not expected.because
    ]
    assert not unexplained


GOOD = """
[sizes.small]
width = 4
depth = 2
[sizes.smaller]
like = "small"
depth = 1
[[model]]
name = "one"
family = "encoder"
class = "OneModel"
config_class = "OneConfig"
config = { like = "small", width = 8, part = { like = "smaller", extra = [1, 2] } }
inputs = ["x=2x3"]
dynamo = "ok"
torchscript = { refused = "RuntimeError: no such thing here", because = "it is so" }
[[network]]
name = "two"
class = "rooms.Two"
dynamo = { diverges = "block.0" }
torchscript = { unrunnable = "ONNX Runtime cannot: load it" }
"""


def read(folder: Path, text: str) -> None:
    (folder / "models.toml").write_text(text)
    read_rows(folder / "models.toml")


def test_settings_are_completed_at_every_depth(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(GOOD)
    one, two = read_rows(tmp_path / "models.toml")
    assert one.config == {"width": 8, "depth": 2, "part": {"width": 4, "depth": 1, "extra": [1, 2]}}
    assert one.inputs == ("x=2x3",)
    assert one.expected == {
        "dynamo": Expected(Outcome.OK),
        "torchscript": Expected(Outcome.REFUSED, "RuntimeError: no such thing here", "it is so"),
        "transformers": Expected(None),
    }
    assert (two.family, two.config) == (HAND_MADE, {})


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ('family = "encoder"', 'family = "encoders"', "one: unknown family 'encoders'"),
        ('dynamo = "ok"', "", "one: 'dynamo'"),
        ('dynamo = "ok"', 'dynamo = "maybe"', "one: 'maybe' is neither 'ok' nor a table"),
        ('dynamo = "ok"', 'dynamo = { refused = " " }', "one: 'refused' has no reason"),
        ('dynamo = "ok"', 'dynamo = { because = "why" }', "one: one of .* is expected, not nothing"),
        ('dynamo = "ok"', 'dynamo = { refused = "a", diverges = "b" }', "not refused, diverges"),
        ('dynamo = "ok"', 'dynamo = { defect = "a" }', "one: one of .* is expected, not defect"),
        ('dynamo = "ok"', 'dynamo = { crashed = "a" }', "one: one of .* is expected, not crashed"),
        ('inputs = ["x=2x3"]', 'imputs = ["x=2x3"]', "one: unknown key 'imputs'"),
        ('like = "small", width', 'like = "tiny", width', "one: 'tiny'"),
        ('name = "two"', 'name = "one"', "rows with the same name: one"),
        ('name = "two"', "", "a row without a name: 'name'"),
    ],
)
def test_a_row_that_nobody_understands_is_refused(before: str, after: str, complaint: str, tmp_path: Path) -> None:
    read(tmp_path, GOOD)
    assert before in GOOD
    with pytest.raises(ManifestInvalid, match=complaint):
        read(tmp_path, GOOD.replace(before, after))


def test_reading_the_manifest_gives_its_order() -> None:
    names = re.findall(r'^name = "(.+)"$', MANIFEST.read_text(), re.MULTILINE)
    assert [row.name for row in ROWS] == names


expectations = st.builds(Expected, st.sampled_from(Outcome), st.text(max_size=4))
results = st.builds(Result, st.just("a"), st.just("dynamo"), st.sampled_from(Outcome), st.text(max_size=6))

REFUSED = Expected(Outcome.REFUSED, "RuntimeError: no")


@pytest.mark.parametrize(
    ("expected", "outcome", "reason", "told"),
    [
        (Expected(Outcome.OK), Outcome.OK, "", ""),
        (REFUSED, Outcome.REFUSED, "RuntimeError: no, at 0x7f", ""),
        (REFUSED, Outcome.OK, "", "expected refused (RuntimeError: no), found ok"),
        (REFUSED, Outcome.REFUSED, "ValueError: no", "refused for another reason"),
        (REFUSED, Outcome.UNRUNNABLE, "RuntimeError: no", "found unrunnable (RuntimeError: no)"),
        (Expected(Outcome.OK), Outcome.DEFECT, "Add x", "expected ok, found defect (Add x)"),
        (Expected(Outcome.OK), Outcome.TIMED_OUT, "after 1 s", "found timed out (after 1 s)"),
    ],
)
def test_a_change_is_told(expected: Expected, outcome: Outcome, reason: str, told: str) -> None:
    found = describe_change(expected, Result("a", "dynamo", outcome, reason))
    assert told in found
    assert bool(found) == bool(told)


@given(expectations, results)
def test_settling_hides_no_change_and_only_cuts_the_reason(expected: Expected, result: Result) -> None:
    cut = cut_reason(expected, result)
    assert describe_change(expected, cut) == describe_change(expected, result)
    assert cut_reason(expected, cut) == cut
    assert result.reason.startswith(cut.reason)
    assert cut.outcome is result.outcome
