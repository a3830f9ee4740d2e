"""The chain of files: links within a step, cache pairs from step to step, empty states before the first token."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.support.packages import package_path

import modelexport as mx
from modelexport.capture.onnxruntime.chain import FileChain, empty_states, find_decoders
from modelexport.capture.onnxruntime.generated_feeds import GeneratedFeeds
from modelexport.errors import InputError, UserError
from modelexport.record.package import PackageInfo

__all__ = ["package_path"]


def open_chain(folder: Path, info: PackageInfo | None = None) -> FileChain:
    package = mx.open_package(folder)
    return FileChain(info or package.info, {name: item.file for name, item in package.components.items()})


def test_generated_feeds_hand_on_links_and_the_cache(package_path: Path) -> None:
    package = mx.open_package(package_path)
    feeds = GeneratedFeeds(package.info, {name: item.file for name, item in package.components.items()})
    prompt = feeds.run_prompt(batch=2, tokens=3)
    assert [*prompt] == ["encoder", "decoder"]
    pasts = [pair.past for pair in package["decoder"].info.cache]
    assert [prompt["decoder"][name].shape[1] for name in pasts] == [0, 0]
    step = feeds.run_step(batch=2)
    assert [*step] == ["decoder"]
    assert [step["decoder"][name].shape[1] for name in pasts] == [3, 3]
    assert feeds.run_step(batch=2)["decoder"][pasts[0]].shape[1] == 4


def test_a_chain_that_is_restarted_has_forgotten(package_path: Path) -> None:
    package = mx.open_package(package_path)
    feeds = GeneratedFeeds(package.info, {name: item.file for name, item in package.components.items()})
    first = feeds.run_prompt(batch=1, tokens=4)["decoder"]
    again = feeds.run_prompt(batch=1, tokens=4)["decoder"]
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_a_state_begins_with_what_the_cache_pair_says() -> None:
    names = ("past_state.0", "past_key_values.0.key")
    values = (
        onnx.helper.make_tensor_value_info("input_ids", onnx.TensorProto.INT64, ["batch", 1]),
        onnx.helper.make_tensor_value_info(names[0], onnx.TensorProto.FLOAT, ["batch", 3]),
        onnx.helper.make_tensor_value_info(names[1], onnx.TensorProto.FLOAT, ["batch", "past_sequence", 4]),
    )
    model = onnx.helper.make_model(onnx.helper.make_graph([], "decoder", values, []))
    states = empty_states(model, {names[0]: -1e30, names[1]: 0.0}, {"input_ids": np.zeros((2, 1), np.int64)})
    np.testing.assert_array_equal(states[names[0]], np.full((2, 3), -1e30, np.float32))
    assert states[names[1]].shape == (2, 0, 4)


def test_an_input_that_nobody_makes_is_named(package_path: Path) -> None:
    info = replace(mx.open_package(package_path).info, links=())
    chain = open_chain(package_path, info)
    with pytest.raises(InputError, match="encoder_hidden_states"):
        chain.step({"decoder": {"input_ids": np.zeros((1, 2), np.int64)}})


def test_a_package_without_a_cache_does_not_generate(package_path: Path) -> None:
    info = mx.open_package(package_path).info
    plain = replace(info, components=tuple(replace(item, cache=()) for item in info.components))
    with pytest.raises(UserError, match="does not generate"):
        find_decoders(plain)


def test_the_first_step_may_have_a_file_of_its_own(package_path: Path) -> None:
    info = mx.open_package(package_path).info
    decoder = next(item for item in info.components if item.cache)
    starting = replace(decoder, name="starting", cache=())
    assert find_decoders(replace(info, components=(starting, decoder))) == ("starting", "decoder")
