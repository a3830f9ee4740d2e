"""Model and inputs as one value: what counts as inputs, as their description, and as several samples."""

from __future__ import annotations

from pathlib import Path

import pytest

from modelexport.record.model_source import ModelSource


@pytest.mark.parametrize(
    ("inputs", "samples"),
    [
        (None, (None,)),
        ({"x": 1}, ({"x": 1},)),
        ([{"x": 1}, {"x": 2}], ({"x": 1}, {"x": 2})),
        ("a.npz", (Path("a.npz"),)),
        (("a.npz", Path("b.npz")), (Path("a.npz"), Path("b.npz"))),
        ((1, 2), ((1, 2),)),
        ([1, {"x": 2}], ([1, {"x": 2}],)),
    ],
)
def test_files_and_lists_of_dictionaries_are_several_samples(inputs: object, samples: tuple[object, ...]) -> None:
    assert ModelSource(inputs=inputs).samples == samples


def test_an_empty_list_is_one_sample_and_no_file() -> None:
    source = ModelSource(inputs=[])
    assert source.input_files == ()
    assert source.samples == ([],)


@pytest.mark.parametrize(
    "described", [{"text": "hello"}, {"image": "cat.png"}, {"input": ("x=2x3",)}, {"input_specs": "specs.json"}]
)
def test_what_is_said_of_inputs_leaves_them_not_open(described: dict[str, object]) -> None:
    assert ModelSource().leaves_inputs_open
    source = ModelSource(**described)  # type: ignore[arg-type]
    assert source.describes_inputs
    assert not source.leaves_inputs_open


def test_given_inputs_are_no_description_of_them() -> None:
    source = ModelSource(inputs={"x": 1})
    assert not source.describes_inputs
    assert not source.leaves_inputs_open
