"""FLOPs of operators: what torch's own counter says where torch has the operator, else a number worked out here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from measure.bench.module_costs import without_mkldnn
from onnx import TensorProto, helper
from tests.support.cost_files import MS, cost_of, file_of, header, numbers, single, value
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from modelexport.record.results.cost import Kind

UINT8, INT8 = TensorProto.UINT8, TensorProto.INT8


def torch_flops(run: Callable[..., object], *shapes: Sequence[int]) -> int:
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), without_mkldnn(), counter:
        run(*(torch.zeros(shape) for shape in shapes))
    return int(counter.get_total_flops())


@pytest.mark.parametrize(
    "shapes", [((5, 7), (7, 3)), ((2, 5, 7), (7, 3)), ((2, 1, 5, 7), (1, 4, 7, 3)), ((2, 4, 5, 7), (2, 4, 7, 3))]
)
def test_matmul_is_what_torch_counts(shapes: tuple[Sequence[int], Sequence[int]]) -> None:
    found = single("MatMul", {"a": shapes[0], "b": shapes[1]})
    assert found.flops == torch_flops(torch.matmul, *shapes)
    assert found.kind is Kind.MATMUL


@pytest.mark.parametrize(("a", "b", "flops"), [((7,), (7, 3), 42), ((5, 7), (7,), 70), ((7,), (7,), 14)])
def test_matmul_of_vectors(a: Sequence[int], b: Sequence[int], flops: int) -> None:
    assert single("MatMul", {"a": a, "b": b}).flops == flops


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm_is_what_torch_counts(turned: tuple[int, int]) -> None:
    a, b = ((7, 5) if turned[0] else (5, 7)), ((3, 7) if turned[1] else (7, 3))
    found = single("Gemm", {"a": a, "b": b, "c": (3,)}, transA=turned[0], transB=turned[1])
    assert found.flops == torch_flops(torch.addmm, (3,), (5, 7), (7, 3))


CONVOLUTIONS: list[tuple[Sequence[int], Sequence[int], dict[str, Any]]] = [
    ((2, 3, 16, 16), (8, 3, 3, 3), {}),
    ((2, 3, 17, 16), (8, 3, 3, 5), {"stride": (2, 3), "padding": (1, 2)}),
    ((1, 8, 9, 9), (16, 2, 3, 3), {"groups": 4, "padding": 1, "dilation": 2}),
    ((1, 8, 20), (8, 1, 4), {"groups": 8, "stride": 2}),
    ((1, 2, 8, 8, 8), (4, 2, 3, 3, 3), {"padding": 1}),
]


@pytest.mark.parametrize(("shape", "weight", "how"), CONVOLUTIONS)
def test_conv_is_what_torch_counts(shape: Sequence[int], weight: Sequence[int], how: dict[str, Any]) -> None:
    run = {3: functional.conv1d, 4: functional.conv2d, 5: functional.conv3d}[len(shape)]
    found = single("Conv", {"x": shape, "w": header("w", weight)}, **onnx_attributes(how, len(shape) - 2))
    assert found.flops == torch_flops(lambda x, w: run(x, w, **how), shape, weight)
    assert found.activation_bytes == 4 * run(torch.zeros(shape), torch.zeros(weight), **how).numel()


@pytest.mark.parametrize(
    ("shape", "weight", "how"),
    [
        ((2, 4, 8, 8), (4, 6, 3, 3), {"stride": 2, "padding": 1, "output_padding": 1}),
        ((1, 8, 5), (8, 2, 4), {"groups": 4, "stride": 3}),
    ],
)
def test_transposed_conv_is_what_torch_counts(shape: Sequence[int], weight: Sequence[int], how: dict[str, Any]) -> None:
    run = functional.conv_transpose1d if len(shape) == 3 else functional.conv_transpose2d
    found = single("ConvTranspose", {"x": shape, "w": header("w", weight)}, **onnx_attributes(how, len(shape) - 2))
    assert found.flops == torch_flops(lambda x, w: run(x, w, **how), shape, weight)
    assert found.activation_bytes == 4 * run(torch.zeros(shape), torch.zeros(weight), **how).numel()


def onnx_attributes(how: dict[str, Any], rank: int) -> dict[str, Any]:
    def each(name: str) -> list[int]:
        given = how[name]
        return [given] * rank if isinstance(given, int) else list(given)

    names = {"stride": "strides", "dilation": "dilations", "output_padding": "output_padding"}
    found: dict[str, Any] = {names[name]: each(name) for name in how if name in names}
    if "padding" in how:
        found["pads"] = each("padding") * 2
    return {**found, "group": how.get("groups", 1)}


@pytest.mark.parametrize(("how", "size"), [("SAME_UPPER", 5), ("SAME_LOWER", 5), ("VALID", 4)])
def test_conv_that_pads_by_itself(how: str, size: int) -> None:
    found = single("Conv", {"x": (1, 3, 9, 9), "w": header("w", (8, 3, 3, 3))}, auto_pad=how, strides=[2, 2])
    assert found.flops == 2 * 8 * size * size * 27


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bhid,bhjd->bhij", ((2, 4, 5, 8), (2, 4, 6, 8))),
        ("ij,jk", ((3, 4), (4, 5))),
        ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 5))),
        ("bi,bj->bij", ((2, 3), (2, 4))),
        ("ij,jk,kl->il", ((3, 4), (4, 5), (5, 6))),
        ("ii->i", ((4, 4),)),
        ("bhst,btd->bsd", ((2, 3, 4, 5), (2, 5, 6))),
        ("ij,kj->i", ((3, 4), (5, 4))),
    ],
)
def test_einsum_is_what_torch_counts(equation: str, shapes: Sequence[Sequence[int]]) -> None:
    given = {f"x{place}": shape for place, shape in enumerate(shapes)}
    found = single("Einsum", given, equation=equation)
    assert found.flops == torch_flops(lambda *tensors: torch.einsum(equation, *tensors), *shapes)
    made = torch.einsum(equation, *(torch.zeros(shape) for shape in shapes))
    assert found.activation_bytes == 4 * made.numel()


@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
@pytest.mark.parametrize("directions", [1, 2])
def test_recurrent_layers_are_what_torch_counts(op_type: str, gates: int, directions: int) -> None:
    steps, batch, width, hidden = 7, 3, 10, 6
    layer = getattr(torch.nn, op_type)(width, hidden, bidirectional=directions == 2).requires_grad_(False)
    given: dict[str, Any] = {
        "x": (steps, batch, width),
        "w": header("w", (directions, gates * hidden, width)),
        "r": header("r", (directions, gates * hidden, hidden)),
    }
    how = "bidirectional" if directions == 2 else "forward"
    found = single(op_type, given, hidden_size=hidden, direction=how, outputs=2)
    assert found.flops == torch_flops(layer, (steps, batch, width))
    assert found.kind is Kind.RECURRENT


# Attention: two products for each pair of a query and a key.
B, N, S, T, D = 2, 4, 5, 9, 8
PAIRS = 4 * B * N * S * D
HIDDEN = N * D
ATTENTIONS: list[tuple[str, str, dict[str, Any], dict[str, Any], int]] = [
    ("", "Attention", {"q": (B, N, S, D), "k": (B, N, T, D), "v": (B, N, T, D)}, {}, PAIRS * T),
    (
        *("", "Attention", {"q": (B, S, HIDDEN), "k": (B, T, HIDDEN // 2), "v": (B, T, HIDDEN // 2)}),
        *({"q_num_heads": N, "kv_num_heads": N // 2}, PAIRS * T),
    ),
    (
        *("", "Attention", {"q": (B, N, S, D), "k": (B, N, S, D), "v": (B, N, S, D), "m": None, "p": (B, N, 4, D)}),
        *({}, PAIRS * (S + 4)),
    ),
    (
        *(MS, "Attention", {"x": (B, S, 20), "w": header("w", (20, 3 * HIDDEN)), "b": (3 * HIDDEN,)}),
        *({"num_heads": N}, 2 * B * S * 20 * 3 * HIDDEN + PAIRS * S),
    ),
    (
        *(MS, "MultiHeadAttention", {"q": (B, S, HIDDEN), "k": (B, T, HIDDEN), "v": (B, T, HIDDEN)}),
        *({"num_heads": N}, PAIRS * T),
    ),
    (
        *(MS, "MultiHeadAttention", {"q": (B, S, HIDDEN), "k": (B, N, T, D), "v": (B, N, T, D)}),
        *({"num_heads": N}, PAIRS * T),
    ),
    (MS, "MultiHeadAttention", {"q": (B, S, N, 3, D)}, {"num_heads": N}, PAIRS * S),
    (
        *(MS, "GroupQueryAttention", {"q": (B, S, HIDDEN), "k": (B, S, HIDDEN // 2), "v": (B, S, HIDDEN // 2)}),
        *({"num_heads": N, "kv_num_heads": N // 2}, PAIRS * S),
    ),
    (
        *(MS, "GroupQueryAttention"),
        {"q": (B, S, 2 * HIDDEN), "k": None, "v": None, "pk": (B, N // 2, 4, D), "pv": (B, N // 2, 4, D)},
        *({"num_heads": N, "kv_num_heads": N // 2}, PAIRS * (S + 4)),
    ),
]


@pytest.mark.parametrize(("domain", "op_type", "given", "how", "flops"), ATTENTIONS)
def test_attention(domain: str, op_type: str, given: dict[str, Any], how: dict[str, Any], flops: int) -> None:
    found = single(op_type, given, domain=domain, **how)
    assert found.flops == flops
    assert found.activation_bytes == 4 * B * S * HIDDEN


def test_attention_is_what_torch_counts() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.MATH):
        theirs = torch_flops(functional.scaled_dot_product_attention, (B, N, S, D), (B, N, T, D), (B, N, T, D))
    assert single("Attention", {"q": (B, N, S, D), "k": (B, N, T, D), "v": (B, N, T, D)}).flops == theirs


def scale(name: str) -> Any:
    return value(name, ())


def byte(name: str, shape: Sequence[int]) -> Any:
    return value(name, shape, UINT8)


QUANTIZED: list[tuple[str, str, dict[str, Any], dict[str, Any], int]] = [
    ("", "MatMulInteger", {"a": byte("a", (5, 7)), "b": byte("b", (7, 3))}, {}, 210),
    ("", "ConvInteger", {"x": byte("x", (1, 3, 8, 8)), "w": header("w", (4, 3, 3, 3), UINT8)}, {}, 2 * 4 * 36 * 27),
    (
        *("", "QLinearMatMul"),
        {"a": byte("a", (5, 7)), "as": scale("as"), "az": byte("az", ()), "b": byte("b", (7, 3)), "bs": scale("bs")}
        | {"bz": byte("bz", ()), "ys": scale("ys"), "yz": byte("yz", ())},
        *({}, 210),
    ),
    (
        *("", "QLinearConv"),
        {"x": byte("x", (1, 3, 8, 8)), "xs": scale("xs"), "xz": byte("xz", ()), "w": header("w", (4, 3, 3, 3), UINT8)}
        | {"ws": scale("ws"), "wz": byte("wz", ()), "ys": scale("ys"), "yz": byte("yz", ())},
        *({}, 2 * 4 * 36 * 27),
    ),
    (
        *(MS, "QGemm"),
        {"a": byte("a", (5, 7)), "as": scale("as"), "az": byte("az", ()), "b": header("b", (3, 7), UINT8)}
        | {"bs": scale("bs"), "bz": byte("bz", ())},
        *({"transB": 1}, 210),
    ),
    (MS, "DynamicQuantizeMatMul", {"a": (5, 7), "b": header("b", (7, 3), UINT8), "bs": scale("bs")}, {}, 210),
    (
        *(MS, "MatMulIntegerToFloat"),
        {"a": byte("a", (5, 7)), "b": byte("b", (7, 3)), "as": scale("as"), "bs": scale("bs")},
        *({}, 210),
    ),
    (MS, "MatMulNBits", {"a": (5, 64), "b": header("b", (3, 2, 16), UINT8), "s": (6,)}, {"K": 64, "N": 3}, 5 * 64 * 6),
    (MS, "FusedMatMul", {"a": (2, 7, 5), "b": (2, 3, 7)}, {"transA": 1, "transB": 1}, 420),
    (MS, "FusedMatMul", {"a": (5, 2, 7), "b": (2, 7, 3)}, {"transBatchA": 1}, 420),
    (MS, "FusedConv", {"x": (1, 3, 8, 8), "w": header("w", (4, 3, 3, 3))}, {"activation": "Relu"}, 2 * 4 * 36 * 27),
    (MS, "FusedGemm", {"a": (5, 7), "b": (3, 7)}, {"transB": 1}, 210),
    (
        *(MS, "MoE"),
        {"x": (6, 8), "r": (6, 4), "f": header("f", (4, 8, 16)), "fb": None, "g": header("g", (4, 16, 8))},
        *({"k": 2}, 2 * 6 * 2 * 256),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("domain", "op_type", "given", "how", "flops"), QUANTIZED)
def test_fused_and_quantized_products(
    domain: str, op_type: str, given: dict[str, Any], how: dict[str, Any], flops: int
) -> None:
    found = single(op_type, given, domain=domain, **how)
    assert found.flops == flops
    assert found.activation_bytes


def test_four_bits_are_counted_as_stored_and_as_numbers() -> None:
    weight = header("b", (3, 2, 16), UINT8)
    found = single(
        "MatMulNBits",
        {"a": (5, 64), "b": weight, "s": header("s", (6,))},
        domain=MS, K=64, N=3, bits=4, block_size=32,
    )  # fmt: skip
    assert found.parameters == 64 * 3
    assert found.weight_bytes == 3 * 2 * 16 + 6 * 4


def test_open_axes_stay_open() -> None:
    found = single("MatMul", {"a": ("batch", "sequence", 64), "b": header("b", (64, 32))})
    assert str(found.flops) == "4096·batch·sequence"
    assert str(found.activation_bytes) == "128·batch·sequence"


def test_an_open_picture_is_halved_exactly() -> None:
    found = single("Conv", {"x": (1, 3, "h", "w"), "k": header("k", (8, 3, 3, 3))}, strides=[2, 2], pads=[1, 1, 1, 1])
    assert found.flops is not None
    for size in (7, 8, 9, 224):
        theirs = torch_flops(
            lambda x, k: functional.conv2d(x, k, stride=2, padding=1), (1, 3, size, size + 1), (8, 3, 3, 3)
        )
        assert found.flops.at({"h": size, "w": size + 1}) == theirs


def test_an_unknown_operator_is_unknown_and_says_so() -> None:
    found = single("Riddle", {"x": (2, 3)}, domain="org.nowhere")
    assert found.flops is None
    assert found.other is None
    assert found.activation_bytes is None
    assert "org.nowhere::Riddle" in found.reason


def test_an_operator_of_others_with_a_known_name_is_unknown() -> None:
    found = single("Softmax", {"x": (2, 3)}, domain="org.nowhere")
    assert (found.flops, found.other, found.activation_bytes) == (None, None, None)


def test_experts_without_weights_are_unknown() -> None:
    assert single("QMoE", {"x": (6, 16), "p": (6, 4)}, domain=MS).flops is None


def test_a_product_of_unknown_shapes_is_unknown_and_says_which() -> None:
    found = single("MatMul", {"a": value("a", None), "b": header("b", (7, 3))})
    assert found.flops is None
    assert found.reason == "the shape of 'a' is not known"


def test_an_input_that_is_too_short_is_unknown_and_never_negative() -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"]), helper.make_node("MatMul", ["y", "y"], ["z"])]
    model = file_of(nodes, [value("x", (1, 1, "length"))], [header("w", (1, 1, 8))])
    found = cost_of(model, {"length": 3})
    assert found.total.flops == 0
    assert found.total.unknown == {"flops": 2, "activation_bytes": 2}
    assert "shorter than the window" in found.nodes[0].reason


def test_shapes_that_do_not_fit_are_unknown() -> None:
    found = single("Conv", {"x": (3,), "w": header("w", (8,))})
    assert found.flops is None
    assert found.reason


@pytest.mark.parametrize(
    ("op_type", "given", "how", "other"),
    [
        ("Add", {"a": (4, 1), "b": (1, 5)}, {}, 20),
        ("Relu", {"a": (4, 5)}, {}, 20),
        ("Softmax", {"a": (4, 5)}, {}, 100),
        ("ReduceMean", {"a": (4, 5), "axes": numbers("axes", 1)}, {}, 20),
        ("MaxPool", {"a": (1, 2, 8, 8)}, {"kernel_shape": [2, 2], "strides": [2, 2]}, 2 * 16 * 4),
        ("Transpose", {"a": (4, 5)}, {}, 0),
    ],
)
def test_other_operations(op_type: str, given: dict[str, Any], how: dict[str, Any], other: int) -> None:
    found = single(op_type, given, **how)
    assert found.flops == 0
    assert found.other == other
