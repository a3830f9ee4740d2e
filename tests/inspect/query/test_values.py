from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelexport.inspect.query.expression import Glob, Spans


@pytest.mark.parametrize(
    ("pattern", "name", "matches"),
    [
        ("encoder", "encoder", True),
        ("encoder", "encoder.layer", False),
        ("encoder.*", "encoder.layer", True),
        ("encoder.*", "encoder", False),
        ("encoder.*", "encoder.layer.0", False),
        ("encoder.**", "encoder", True),
        ("encoder.**", "encoder.layer.0", True),
        ("encoder.**", "encoders", False),
        ("**", "", True),
        ("*", "", False),
        ("", "", True),
        ("", "encoder", False),
        ("**.fc", "fc", True),
        ("**.fc", "a.b.fc", True),
        ("**.fc", "a.b.fc.c", False),
        ("a.**.b.**.c", "a.b.c", True),
        ("a.**.b.**.c", "a.x.b.y.b.z.c", True),
        ("a.**.b.**.c", "a.x.c", False),
        ("layer.*.attention.**", "layer.11.attention.self.query", True),
        ("layer.1*", "layer.11", True),
        ("*a*b", "xaybzb", True),
        ("a*a", "a", False),
        ("**.a.b", "a.a.b", True),
        ("*ab*ba*", "aba", False),
        ("a**b", "a.b", False),
        ("a**b", "axxb", True),
        (r"a\*", "a*", True),
        (r"a\*", "ab", False),
        (r"a\\b", r"a\b", True),
        (r"\**", "*anything", True),
        ("a[0]?", "a[0]?", True),
    ],
)
def test_paths(pattern: str, name: str, matches: bool) -> None:
    assert Glob(pattern).matcher(".")(name) is matches


def test_without_a_separator_a_star_goes_everywhere() -> None:
    assert Glob("/encoder*MatMul").matcher()("/encoder/layer.0/query/MatMul")
    assert Glob("**").matcher()("")


def test_a_tag_begins_with_its_separator() -> None:
    matches = Glob("/Net/**").matcher("/")
    assert matches("/Net")
    assert matches("/Net/Block.0/Linear")
    assert not matches("/Other/Net")
    assert Glob("**/Block.*").matcher("/")("/Net/Block.0")


STEPS = st.sampled_from(["**", "*", "a", "b", "a*", "*b", "a*a", "*a*b*"])


@settings(max_examples=500)
@given(st.lists(STEPS, max_size=5), st.lists(st.sampled_from(["a", "b", "ab", "aab"]), max_size=6))
def test_patterns_mean_what_the_regular_expression_means(pattern: list[str], name: list[str]) -> None:
    text = ".".join(pattern)
    expected = re.fullmatch(_regular(pattern), "".join(f"{step}." for step in name)) is not None
    assert Glob(text).matcher(".")(".".join(name)) is expected


def _regular(steps: list[str]) -> str:
    written = (r"([^.]+\.)*" if step == "**" else re.sub(r"\*+", "[^.]*", step) + r"\." for step in steps)
    return "".join(written)


@pytest.mark.parametrize("separator", ["", "."])
def test_no_pattern_takes_long(separator: str) -> None:
    started = time.process_time()
    assert not Glob("*a" * 60 + "b").matcher(separator)("a" * 5000)
    assert not Glob("**.a." * 60 + "b").matcher(".")("a." * 2000 + "c")
    assert time.process_time() - started < 2


def test_literal_or_not() -> None:
    assert Glob(r"a\*").is_literal
    assert not Glob("a*").is_literal


def test_spans() -> None:
    spans = Spans(((0, 0), (2, 4)))
    assert [number for number in range(7) if number in spans] == [0, 2, 3, 4]
    assert str(spans) == "0,2..4"
    assert spans.single is None
    assert Spans(((3, 3),)).single == 3
