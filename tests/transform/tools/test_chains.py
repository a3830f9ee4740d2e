"""Chains of tools as people write them: `int8+ort:all`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelexport.errors import UserError
from modelexport.transform.tools.catalogue import TOOLS, parse_chain

# Those that take a number do not choose one by themselves.
ALONE = [tool.name for tool in TOOLS.values() if not any(option.isdecimal() for option in tool.options)]
WRITTEN = [*ALONE, *(f"{tool.name}:{option}" for tool in TOOLS.values() for option in tool.options)]


@given(st.lists(st.sampled_from(WRITTEN), min_size=1, max_size=4), st.sampled_from(["+", " + "]))
def test_every_chain_of_known_tools_is_read(names: list[str], joined: str) -> None:
    found = parse_chain(joined.join(names))
    assert [tool.name for tool, _ in found] == [name.partition(":")[0] for name in names]
    for name, (tool, option) in zip(names, found, strict=True):
        assert option == (name.partition(":")[2] or next(iter(tool.options), ""))


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("", "names no tool", "Known: "),
        (" + ", "names no tool", "Known: "),
        ("int8+", "no tool on one side", "leave it out: int8."),
        ("int8++ort", "no tool on one side", "int8+ort"),
        ("int8,ort", "unknown tool", "Join several tools by +: int8+ort."),
        ("int8 -> ort", "unknown tool", "int8+ort"),
        ("ort:most", "no option 'most'", "It knows: all, extended, basic."),
        ("opset:new", "no option 'new'", "It takes a number, as in opset:21."),
        ("opset", "opset does not say which one", "It takes a number, as in opset:21."),
        ("ort+onnxscript_opset", "onnxscript_opset does not", "It takes a number, as in onnxscript_opset:21."),
        ("int8:4", "no option '4'", "It has none."),
        ("INT8", "INT8", "int8"),
        ("onnx-slim", "onnx-slim", "onnxslim"),
    ],
)
def test_what_cannot_be_read_is_answered_with_what_can(text: str, message: str, hint: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        parse_chain(text)
    assert hint in caught.value.hint


def test_a_number_stands_for_a_number() -> None:
    ((tool, option),) = parse_chain("opset:17")
    assert (tool.name, option) == ("opset", "17")
