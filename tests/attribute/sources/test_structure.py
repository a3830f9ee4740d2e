"""Layers of networks without names: what repeats is found, whatever the order of the file; nothing is invented."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from onnx import TensorProto, helper
from tests.support.building import body, node
from tests.support.nameless_nets import WIDTH, WITHOUT_REPETITION, Net, layers, read_paths
from tests.support.scrambling import reordered

from modelexport.attribute.sources.structure import read_structure
from modelexport.graph.index import index_model
from modelexport.record.provenance import Confidence


def _decoder(count: int, **options: str) -> tuple[Net, list[str]]:
    net = Net()
    ends = [net.embed()]
    for _ in range(count):
        ends.append(net.pre_norm_layer(ends[-1], **options))
    return net, [*ends, net.linear(net.norm(ends[-1]), made=100)]


def test_every_block_of_a_transformer_is_a_layer() -> None:
    net, (embedded, *ends, logits) = _decoder(4)
    paths = net.paths(logits)
    assert layers(paths) == [f"layers.{number}" for number in range(4)]
    assert [paths[end] for end in ends] == [f"layers.{number}" for number in range(4)]
    assert (paths[embedded], paths[logits]) == ("stem", "head")


def test_parts_have_the_names_of_their_roles() -> None:
    net, ends = _decoder(3)
    by_weight = {proto.input[1]: proto.output[0] for proto in net.nodes if proto.op_type == "MatMul"}
    paths = net.paths(ends[-1])
    # The second layer: two norms of two weights each, six products, behind a table and a layer of the same.
    products = [by_weight[f"w{number}"] for number in (13, 14, 15, 16, 19, 20)]
    assert [paths[key] for key in products] == [
        f"layers.1.{part}"
        for part in ("attention.query", "attention.key", "attention.value", "attention.output", "mlp.up", "mlp.down")
    ]
    assert {path for path in paths.values() if "norm" in path} >= {"layers.1.norm1", "layers.1.norm2"}
    softmax = next(proto.output[0] for proto in net.nodes if proto.op_type == "Softmax")
    assert paths[softmax] == "layers.0.attention"


def test_weights_are_where_they_are_read() -> None:
    net, ends = _decoder(3)
    reading = read_structure(index_model(net.proto(ends[-1])))
    assert reading is not None
    assert reading.confidence is Confidence.INFERRED
    assert reading.initializers["w13"] == ("layers.1.attention.query",)
    assert reading.initializers["w0"] == ("stem",)


def test_the_norm_behind_a_layer_is_part_of_it_even_if_the_layer_is_the_last() -> None:
    net = Net()
    value = net.norm(net.embed())
    ends = [value := net.post_norm_layer(value) for _ in range(3)]
    paths = net.paths(net.linear(value))
    assert [paths[end] for end in ends] == ["layers.0.norm2", "layers.1.norm2", "layers.2.norm2"]


def test_the_norm_behind_pre_norm_layers_is_part_of_the_head() -> None:
    net, ends = _decoder(3)
    norm = net.nodes[-2].output[0]
    assert net.paths(ends[-1])[norm] == "head"


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_the_file_does_not_matter(seed: int) -> None:
    net, ends = _decoder(4)
    proto = net.proto(ends[-1])
    assert read_paths(reordered(proto, Random(seed))) == read_paths(proto)


def test_a_mask_that_all_layers_read_is_in_none_of_them() -> None:
    net = Net("x m")
    mask = net.add("Mul", net.add("Sub", "m", net.weight(1)), net.weight(1))
    value = net.embed()
    for _ in range(3):
        value = net.pre_norm_layer(value, mask=mask)
    paths = net.paths(net.linear(value))
    assert len(layers(paths)) == 3
    assert mask not in paths


def test_attention_and_feed_forward_side_by_side_are_one_layer() -> None:
    net = Net()
    value = net.embed()
    for _ in range(4):
        normed = net.norm(value)
        value = net.add("Add", net.feed_forward(normed), net.add("Add", net.attend(normed), value))
    assert len(layers(net.paths(net.linear(value)))) == 4


def test_encoder_and_decoder_are_told_by_what_reads_what() -> None:
    net = Net("x z")
    memory, value = net.embed(), net.embed("z")
    for _ in range(3):
        memory = net.pre_norm_layer(memory)
    memory = net.norm(memory)
    for _ in range(2):
        value = net.pre_norm_layer(value, memory=memory)
    paths = net.paths(net.linear(value))
    assert layers(paths) == [
        f"{name}.layers.{number}" for name, count in (("decoder", 2), ("encoder", 3)) for number in range(count)
    ]
    assert paths[memory] == "encoder"
    assert "decoder.layers.1.cross_attention.key" in paths.values()


def test_two_towers_are_two_stacks() -> None:
    net = Net("x z")
    ends = []
    for given, count in (("x", 2), ("z", 3)):
        value = net.embed(given)
        for _ in range(count):
            value = net.pre_norm_layer(value)
        ends.append(value)
    found = layers(net.paths(net.add("MatMul", ends[0], net.add("Transpose", ends[1], perm=[1, 0]))))
    assert sorted(sum(path.startswith(f"stack_{number}.") for path in found) for number in range(2)) == [2, 3]


def test_blocks_that_widen_are_stages() -> None:
    net = Net()
    value = net.convolve("x", 3, 8)
    for given, made in ((8, 8), (8, 8), (8, 16), (16, 16), (16, 16)):
        value = net.convolution_block(value, given, made)
    paths = net.paths(net.add("GlobalAveragePool", value))
    assert layers(paths) == [
        f"stages.{stage}.layers.{number}" for stage, count in ((0, 2), (1, 3)) for number in range(count)
    ]


def test_a_downsampling_between_blocks_cuts_a_run_into_stages() -> None:
    net = Net()
    value = net.convolve("x", 3, WIDTH, 4, strides=[4, 4])
    for stage in range(3):
        value = net.convolve(value, WIDTH, WIDTH, 2, strides=[2, 2]) if stage else value
        for _ in range(2):
            branch = net.convolve(value, 1, WIDTH, 7, group=WIDTH)
            branch = net.convolve(net.add("Relu", net.convolve(branch, WIDTH, 48, 1)), 48, WIDTH, 1)
            value = net.add("Add", value, branch)
    paths = net.paths(net.add("GlobalAveragePool", value))
    assert layers(paths) == [f"stages.{stage}.layers.{number}" for stage in range(3) for number in range(2)]


def test_blocks_without_a_shortcut_are_layers_if_others_like_them_have_one() -> None:
    """Where the width changes there is no shortcut; the first such block touches the stem, the last one the head."""
    net = Net()
    value = net.convolve("x", 3, 8)
    for given, made in ((8, 16), (16, 16), (16, 24), (24, 24), (24, 24), (24, 32)):
        wide = net.add("Relu", net.convolve(value, given, 48, 1))
        branch = net.convolve(net.add("Relu", net.convolve(wide, 1, 48, 3, group=48)), 48, made, 1)
        value = net.add("Add", branch, value) if given == made else branch
    paths = net.paths(net.add("GlobalAveragePool", net.convolve(value, 32, 64, 1)))
    assert len(layers(paths)) == 6


def test_the_two_ways_of_a_u_net() -> None:
    net = Net()
    value, skips = "x", list[str]()
    for given, made in ((3, 8), (8, 16), (16, 32)):
        value = net.add("MaxPool", value, kernel_shape=[2, 2]) if skips else value
        value = net.add("Relu", net.convolve(net.add("Relu", net.convolve(value, given, made)), made, made))
        skips.append(value)
    for given, made in ((32, 16), (16, 8)):
        grown = net.add("ConvTranspose", value, net.weight(given, made, 2, 2), strides=[2, 2])
        value = net.add("Concat", grown, skips[-2], axis=1)
        skips.pop()
        value = net.add("Relu", net.convolve(net.add("Relu", net.convolve(value, given, made)), made, made))
    found = layers(net.paths(net.convolve(value, 8, 2, 1)))
    assert found == ["down.layers.0", "down.layers.1", "down.layers.2", "up.layers.0", "up.layers.1"]


def test_feed_forward_networks_over_tokens_and_channels_take_turns() -> None:
    """Equal operators of other sizes: the sizes tell that two of them make a layer."""
    net = Net()
    value = net.embed()
    for _ in range(4):
        for width in (16, 32):
            branch = net.linear(net.add("Relu", net.linear(net.norm(value), width, 64)), 64, width)
            value = net.add("Add", value, branch)
    assert len(layers(net.paths(net.linear(value)))) == 4


def test_a_gelu_that_was_taken_apart_is_no_shortcut() -> None:
    net = Net()
    value = net.embed()
    for _ in range(3):
        wide = net.linear(net.norm(value), made=48)
        cube = net.add("Mul", net.add("Mul", wide, wide), wide)
        bent = net.add("Mul", wide, net.add("Tanh", net.add("Add", wide, net.add("Mul", cube, net.weight(1)))))
        value = net.add("Add", value, net.linear(bent, given=48))
        value = net.add("Add", value, net.attend(net.norm(value)))
    assert len(layers(net.paths(net.linear(value)))) == 3


def test_quantized_weights_and_values() -> None:
    net = Net()

    def quantize(value: str) -> str:
        return net.add("DequantizeLinear", net.add("QuantizeLinear", value, net.weight()), net.weight())

    value = net.add("Relu", net.convolve("x", 3, 8))
    for _ in range(3):
        short = quantize(value)
        weights = [
            net.add("DequantizeLinear", net.weight(8, 8, 3, 3, dtype=TensorProto.INT8), net.weight()) for _ in "12"
        ]
        branch = quantize(net.add("Relu", net.add("Conv", short, weights[0])))
        value = net.add("Relu", net.add("Add", quantize(net.add("Conv", branch, weights[1])), short))
    assert len(layers(net.paths(net.add("GlobalAveragePool", value)))) == 3


def test_norms_that_add_first() -> None:
    """The sum goes on to the next of them as a further output; the branch reads the normalized one."""
    net = Net()
    total = net.embed()
    normed = net.norm(total)
    for _ in range(4):
        branch = net.feed_forward(normed) if normed != total else normed
        normed = net.add("SkipLayerNormalization", total, branch, net.weight(WIDTH), domain="com.microsoft", count=4)
        total = normed[:-1] + "d"
    assert len(layers(net.paths(net.linear(normed)))) == 4


def test_convolutions_that_add_by_themselves() -> None:
    net = Net()
    value = net.convolve("x", 3, 8)
    for _ in range(3):
        inner = net.add("FusedConv", value, net.weight(8, 8, 3, 3), domain="com.microsoft")
        value = net.add("FusedConv", inner, net.weight(8, 8, 3, 3), net.weight(8), value, domain="com.microsoft")
    assert len(layers(net.paths(net.add("GlobalAveragePool", value)))) == 3


def test_nodes_in_bodies_are_where_the_node_is_that_holds_them() -> None:
    net = Net("x c")
    value = net.embed()
    for number in range(3):
        wide = net.linear(net.norm(value))
        branches: dict[str, Any] = {
            "then_branch": body(node("Relu", wide, f"t{number}"), outputs=f"t{number}"),
            "else_branch": body(node("Tanh", wide, f"e{number}"), outputs=f"e{number}"),
        }
        value = net.add("Add", value, net.linear(net.add("If", "c", **branches)))
    paths = net.paths(net.linear(value))
    inner = [path for key, path in paths.items() if "then_branch" in key]
    assert [path.rpartition(".mlp")[0] or path for path in inner] == ["layers.0", "layers.1", "layers.2"]


def test_a_cache_is_part_of_its_layer() -> None:
    net = Net("x p0 p1 p2")
    value, presents = net.embed(), []
    for number in range(3):
        normed = net.norm(value)
        query, key, content = (net.linear(normed) for _ in range(3))
        key = net.add("Concat", f"p{number}", key, axis=1)
        presents.append(key)
        scores = net.add("Softmax", net.add("MatMul", query, net.add("Transpose", key, perm=[0, 2, 1])))
        value = net.add("Add", value, net.linear(net.add("MatMul", scores, content)))
        value = net.add("Add", value, net.feed_forward(net.norm(value)))
    paths = net.paths(net.linear(value), *presents)
    assert [paths[key].split(".")[:2] for key in presents] == [["layers", str(number)] for number in range(3)]


@pytest.mark.parametrize("build", WITHOUT_REPETITION, ids=lambda item: item.__name__)
def test_nothing_is_said_where_nothing_repeats(build: Callable[[Net], str]) -> None:
    net = Net()
    assert read_structure(index_model(net.proto(build(net)))) is None


def test_a_head_that_looks_like_a_layer_is_none() -> None:
    net = Net()
    value = net.feed_forward("x")
    for _ in range(3):
        value = net.add("Add", value, net.feed_forward(net.norm(value)))
    assert len(layers(net.paths(net.feed_forward(value)))) == 3


def test_an_empty_graph() -> None:
    empty = helper.make_model(helper.make_graph([], "empty", [], []))
    assert read_structure(index_model(empty)) is None


def test_a_sum_of_several_branches_is_one_shortcut() -> None:
    net = Net()
    value = net.embed()
    for _ in range(3):
        normed = net.norm(value)
        value = net.add("Sum", net.feed_forward(normed), value, net.attend(normed))
    assert len(layers(net.paths(net.linear(value)))) == 3


def test_constants_of_a_block_without_a_shortcut_are_in_it() -> None:
    """Blocks that are cut out of a longer stretch take along what only they read."""
    net = Net()
    value, scales = net.convolve("x", 3, 8), list[str]()
    for given, made in ((8, 16), (16, 16), (16, 16), (16, 24), (24, 32), (32, 32)):
        scales.append(net.add("Neg", net.weight(1)))
        wide = net.add("Mul", net.convolve(value, given, 48, 1), scales[-1])
        branch = net.convolve(net.add("Relu", net.convolve(wide, 1, 48, 3, group=48)), 48, made, 1)
        value = net.add("Add", branch, value) if given == made else branch
    paths = net.paths(net.add("GlobalAveragePool", value))
    places = [layers({"": paths[scale]}) for scale in scales]
    assert places == [[layer] for layer in layers(paths)]
    assert len(places) == 6
