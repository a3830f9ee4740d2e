from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from tests.support.building import graph, node

from modelexport.graph.constants import integer, integers, text

NAMES = st.text("abcxyz", min_size=1, max_size=5)
NUMBERS = st.integers(-(2**40), 2**40)


@given(
    st.dictionaries(NAMES, NUMBERS | st.lists(NUMBERS, min_size=1, max_size=4) | st.text("ab->,é", min_size=1)), NAMES
)
def test_every_attribute_reads_back(values: dict[str, int | list[int] | str], absent: str) -> None:
    proto = node("Thing", "x", "y", domain="d")
    proto.attribute.extend(helper.make_attribute(name, value) for name, value in values.items())
    found = graph(proto).nodes[0]
    for name, value in values.items():
        if isinstance(value, str):
            assert text(found, name) == value
        else:
            assert integers(found, name) == (tuple(value) if isinstance(value, list) else (value,))
    if absent not in values:
        assert integers(found, absent) == ()
        assert integer(found, absent, 7) == 7
        assert text(found, absent) == ""
