"""Inputs made from a file alone, which the file can be run with."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from tests.support.building import model, node
from tests.support.children import run_child
from tests.support.exports import Exports

from modelexport.capture.onnxruntime.inputs import SampleRequest, make_feed, sample_feeds
from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.errors import InputError
from modelexport.graph.file.reading import open_model
from modelexport.graph.index import index_model

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
Size = int | str | None


def taking(**inputs: tuple[int, tuple[Size, ...] | None]) -> onnx.ModelProto:
    """A model with inputs of these types and shapes; `ids` is looked up, if there is one."""
    values = [helper.make_tensor_value_info(name, kind, shape) for name, (kind, shape) in inputs.items()]
    table = numpy_helper.from_array(np.zeros((50, 4), np.float32), "table")
    proto = model(node("Gather", "table ids", "y"), weights=[table])
    del proto.graph.input[:]
    proto.graph.input.extend(values)
    return proto


def fed(proto: onnx.ModelProto, seed: int = 0, **shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return make_feed(proto, index_model(proto), seed=seed, shapes=shapes)


def samples(proto: onnx.ModelProto, request: SampleRequest) -> list[dict[str, np.ndarray]]:
    return list(sample_feeds(proto, index_model(proto), request))


def shapes_of(feed: dict[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: array.shape for name, array in feed.items()}


# values


def test_what_the_numbers_are() -> None:
    shape = (8, 100)
    feed = fed(
        taking(
            ids=(INT64, shape),
            mask=(INT64, shape),
            x=(FLOAT, shape),
            half=(TensorProto.FLOAT16, shape),
            on=(BOOL, shape),
        )
    )
    assert feed["ids"].min() == 0
    assert feed["ids"].max() == 49
    assert feed["mask"].min() == feed["mask"].max() == 1
    assert feed["on"].all()
    assert abs(feed["x"].mean()) < 0.2
    assert 0.8 < feed["x"].std() < 1.2
    kinds = {"ids": "int64", "mask": "int64", "x": "float32", "half": "float16", "on": "bool"}
    assert {name: array.dtype.name for name, array in feed.items()} == kinds


def test_an_index_into_something_of_unknown_size_is_the_first() -> None:
    proto = taking(ids=(INT64, (3,)))
    proto.graph.node.insert(0, node("Sin", "table", "t"))
    proto.graph.node[1].input[0] = "t"
    np.testing.assert_array_equal(fed(proto)["ids"], [0, 0, 0])


def test_a_seed_gives_the_same_again_and_each_input_its_own() -> None:
    proto = taking(a=(FLOAT, (50,)), b=(FLOAT, (50,)), ids=(INT64, (50,)))
    first, again, other = fed(proto, 3), fed(proto, 3), fed(proto, 4)
    assert not np.array_equal(first["a"], first["b"])
    for name, array in first.items():
        np.testing.assert_array_equal(array, again[name])
        assert not np.array_equal(array, other[name])
    # An input more or less changes nothing about the others.
    np.testing.assert_array_equal(fed(taking(b=(FLOAT, (50,))), 3)["b"], first["b"])


def test_weights_that_are_listed_as_inputs_are_not_made() -> None:
    proto = taking(ids=(INT64, (2,)), table=(FLOAT, (50, 4)))
    assert set(fed(proto)) == {"ids"}


# shapes


def test_axes_of_one_name_have_one_size() -> None:
    feed = fed(taking(ids=(INT64, ("n", "s")), mask=(INT64, ("n", "s")), x=(FLOAT, ("n", 8, "s")), y=(FLOAT, (5, "n"))))
    (batch, length) = feed["ids"].shape
    expected = {"ids": (batch, length), "mask": (batch, length), "x": (batch, 8, length), "y": (5, batch)}
    assert shapes_of(feed) == expected


def test_usual_sizes_are_long_enough_for_what_they_are() -> None:
    feed = fed(
        taking(
            ids=(INT64, ("n", "s")),
            picture=(FLOAT, ("n", 3, "h", "w")),
            cache=(FLOAT, ("n", 4, "past", 8)),
            sound=(FLOAT, ("n", "samples")),
            embedded=(FLOAT, ("n", "s", 8)),
            nameless=(FLOAT, (None, 3, None, None)),
        )
    )
    assert shapes_of(feed) == {
        "ids": (1, 16),
        "picture": (1, 3, 224, 224),
        "cache": (1, 4, 16, 8),
        "sound": (1, 4096),
        "embedded": (1, 16, 8),
        "nameless": (1, 3, 224, 224),
    }


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("past + 1", 17),
        ("past + s", 32),
        ("2*past", 32),
        ("past // 3", 5),
        ("past - 16", 16),  # nothing would be left
        ("past-length", 16),  # a name, though it looks like a difference
        ("past.length", 16),
        ("past // 0", 16),
        ("max(past, 3)", 16),
        ("total length", 16),
    ],
)
def test_names_that_are_sums_of_others_are_added_up(name: str, size: int) -> None:
    proto = taking(ids=(INT64, ("n", "s")), cache=(FLOAT, ("n", 2, "past", 4)), mask=(INT64, ("n", name)))
    assert fed(proto)["mask"].shape == (1, size)


@pytest.mark.parametrize("length", ["", "_length"])
def test_a_mask_is_as_long_as_the_past_and_what_is_new(length: str) -> None:
    new, past, total = (f"{name}{length}" for name in ("sequence", "past_sequence", "total_sequence"))
    proto = taking(ids=(INT64, ("n", new)), cache=(FLOAT, ("n", 2, past, 4)), mask=(INT64, ("n", total)))
    assert fed(proto)["mask"].shape == (1, 32)
    assert fed(proto, ids=(1, 3))["mask"].shape == (1, 19)
    assert fed(proto, mask=(1, 8))["mask"].shape == (1, 8)
    alone = taking(ids=(INT64, ("n", new)), mask=(INT64, ("n", total)))
    assert fed(alone)["mask"].shape == (1, 16)


def test_a_given_shape_decides_for_others_too() -> None:
    proto = taking(ids=(INT64, ("n", "s")), mask=(INT64, ("n", "s")), more=(INT64, ("n", "s + 1")), x=(FLOAT, ("n", 3)))
    feed = fed(proto, ids=(2, 5))
    assert shapes_of(feed) == {"ids": (2, 5), "mask": (2, 5), "more": (2, 6), "x": (2, 3)}


@given(st.lists(st.sampled_from([1, 2, 7, "a", "b", "a + b", None]), max_size=5))
def test_shapes_always_fit(dims: list[Size]) -> None:
    shape = fed(taking(x=(INT64, tuple(dims)), a=(INT64, ("n", "a"))))["x"].shape
    assert len(shape) == len(dims)
    assert all(size > 0 for size in shape)
    assert all(size == dim for size, dim in zip(shape, dims, strict=True) if isinstance(dim, int))


# what the user gives


def test_shapes_as_they_are_written() -> None:
    proto = taking(
        **{"ids": (INT64, ("n", "s")), "input.1": (FLOAT, ("n",)), "onnx::x": (FLOAT, None), "s": (FLOAT, ())}
    )
    request = SampleRequest(shapes=("ids=2x5:int64", "onnx::x=3,4:float32", "input.1=2", "s="))
    (feed,) = samples(proto, request)
    assert shapes_of(feed) == {"ids": (2, 5), "input.1": (2,), "onnx::x": (3, 4), "s": ()}


def test_samples_are_as_many_as_asked_for_and_differ() -> None:
    proto = taking(ids=(INT64, ("n", "s")))
    found = samples(proto, SampleRequest(count=3, seed=7, shapes=("ids=2x40",)))
    assert [feed["ids"].shape for feed in found] == [(2, 40)] * 3
    assert len({feed["ids"].tobytes() for feed in found}) == 3
    np.testing.assert_array_equal(found[1]["ids"], fed(proto, 8, ids=(2, 40))["ids"])


def test_each_file_is_one_sample(tmp_path: Path) -> None:
    proto = taking(ids=(INT64, ("n", "s")), x=(TensorProto.FLOAT16, ("n",)))
    for number in range(2):
        np.savez(
            tmp_path / f"{number}.npz", ids=np.full((1, 3), number), x=np.array([0.5], np.float32), spare=np.ones(3)
        )
    request = SampleRequest(count=9, files=(tmp_path / "0.npz", tmp_path / "1.npz"))
    found = samples(proto, request)
    assert [feed["ids"].tolist() for feed in found] == [[[0, 0, 0]], [[1, 1, 1]]]
    assert found[0]["x"].dtype == np.float16  # the file may be narrower than what was given
    assert set(found[0]) == {"ids", "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ids", "cannot read the input 'ids'"),
        ("=1x2", "cannot read the input '=1x2'"),
        ("ids=1xa", "cannot read the input 'ids=1xa'"),
        ("ids=1x2 ids=1x2", "input 'ids' is given twice"),
        ("id=1x2", "the file takes no input 'id'"),
        ("ids=1x2x3", "the file takes 'ids' as nxs, not as 1x2x3"),
        ("x=1x4", "the file takes 'x' as nx3, not as 1x4"),
        ("ids=1x2:float32", "the file takes 'ids' as int64, not as float32"),
        ("ids=1x2:strange", "input 'ids': unknown dtype 'strange'"),
        ("ids=1x2 x=2x3", "the axis 'n' has the size 2 in 'x' and 1 in another input"),
        ("ids=0x2", "every size of 0x2 must be at least 1"),
    ],
)
def test_what_does_not_fit_is_told(text: str, message: str) -> None:
    proto = taking(ids=(INT64, ("n", "s")), x=(FLOAT, ("n", 3)))
    with pytest.raises(InputError) as failure:
        samples(proto, SampleRequest(shapes=tuple(text.split())))
    assert message in failure.value.message
    assert failure.value.hint


def test_the_width_of_a_stated_type_is_the_files() -> None:
    (feed,) = samples(taking(ids=(INT64, ("n",))), SampleRequest(shapes=("ids=4:int32",)))
    assert feed["ids"].dtype == np.int64


def test_a_shape_that_nobody_knows_must_be_given() -> None:
    proto = taking(x=(FLOAT, None))
    with pytest.raises(InputError, match="does not say what shape 'x' has") as failure:
        fed(proto)
    assert "--input x=" in failure.value.hint
    assert fed(proto, x=(2, 3))["x"].shape == (2, 3)


def test_what_cannot_be_made_up_is_told() -> None:
    with pytest.raises(InputError, match="'words' as string"):
        fed(taking(words=(TensorProto.STRING, (2,))))
    proto = taking(x=(FLOAT, (2,)))
    sequence = helper.make_tensor_sequence_value_info("many", FLOAT, None)
    proto.graph.input.append(sequence)
    with pytest.raises(InputError, match="'many', which is no tensor"):
        fed(proto)


def test_files_that_cannot_be_used_are_told(tmp_path: Path) -> None:
    proto = taking(ids=(INT64, ("n", 4)))
    text = tmp_path / "text.npz"
    text.write_text("no archive")
    objects = tmp_path / "objects.npz"
    np.savez(objects, ids=np.array([{}], dtype=object))
    other = tmp_path / "other.npz"
    np.savez(other, x=np.ones((2, 2), np.float32))
    wrong = tmp_path / "wrong.npz"
    np.savez(wrong, ids=np.ones((1, 5), np.int64))
    for path in (tmp_path / "nothing.npz", text, objects, other, wrong):
        with pytest.raises(InputError):
            samples(proto, SampleRequest(files=(path,)))


# real files


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "t5", "vit", "resnet", "whisper", "clip", "wav2vec2"])
def test_real_exports_run_on_what_is_made_for_them(exports: Exports, name: str, exporter: str) -> None:
    file = open_model(exports(name, exporter).path)
    wanted = [value.name for value in file.proto.graph.output]
    made: dict[str, np.ndarray] = {}
    feed = make_feed(file.proto, index_model(file.proto), seed=0)
    PiecewiseRun(file, wanted).run(feed, lambda name, array: made.update({name: array.copy()}))
    assert set(made) == {*feed, *wanted}
    assert all(np.isfinite(made[name]).all() for name in wanted)


def test_neither_making_inputs_nor_running_a_file_needs_torch() -> None:
    modules = "modelexport.capture.onnxruntime.inputs, modelexport.capture.onnxruntime.piecewise"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    result = run_child([sys.executable, "-c", code], check=True)
    assert result.stdout.strip() == "False"
