"""One rule for each operator that multiplies and adds: what it makes, and what that takes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modelexport.costing import attention, einsum, products
from modelexport.costing.axes import Shape
from modelexport.costing.operators import CONVOLUTIONS, MS, NHWC
from modelexport.costing.values import Operator
from modelexport.graph.blocked import DOMAIN as NCHWC
from modelexport.record.cost import Kind
from modelexport.record.polynomial import Polynomial


@dataclass(frozen=True)
class Product:
    kind: Kind
    flops: Callable[[Operator], Polynomial]
    made: Callable[[Operator], Sequence[Shape]]


_MATMUL = Product(Kind.MATMUL, products.matmul, products.matmul_made)
_PACKED = Product(Kind.MATMUL, products.packed, products.packed_made)
_CONV = Product(Kind.CONVOLUTION, products.conv, products.conv_made)
_TRANSPOSED = Product(Kind.CONVOLUTION, products.transposed, products.transposed_made)
_RECURRENT = Product(Kind.RECURRENT, products.recurrent, products.recurrent_made)
_EXPERTS = Product(Kind.MATMUL, products.experts, lambda op: [op.shape(0)])
_PROJECTED = Product(Kind.ATTENTION, attention.projected, attention.projected_made)
_MULTI_HEAD = Product(Kind.ATTENTION, attention.multi_head, attention.multi_head_made)
_GROUPED = Product(Kind.ATTENTION, attention.grouped, attention.grouped_made)


def _rules() -> Iterator[tuple[tuple[str, str], Product]]:
    for name in ("MatMul", "Gemm", "MatMulInteger", "QLinearMatMul"):
        yield ("", name), _MATMUL
    for name in (
        *("FusedMatMul", "FusedMatMulActivation", "TransposeMatMul", "FusedGemm", "GemmFastGelu", "GemmFloat8"),
        *(
            "MatMulInteger16",
            "MatMulIntegerToFloat",
            "DynamicQuantizeMatMul",
            "QGemm",
            "QLinearMatMul",
            "MatMulInteger",
        ),
    ):
        yield (MS, name), _MATMUL
    for name in ("MatMulNBits", "MatMulBnb4"):
        yield (MS, name), _PACKED
    for domain in ("", MS, NCHWC, NHWC):
        yield from (((domain, name), _CONV) for name in CONVOLUTIONS)
        yield (domain, "ConvTranspose"), _TRANSPOSED
    yield ("", "DeformConv"), Product(Kind.CONVOLUTION, products.deformed, products.deformed_made)
    yield ("", "Einsum"), Product(Kind.MATMUL, einsum.einsum, einsum.einsum_made)
    yield from ((("", name), _RECURRENT) for name in ("LSTM", "GRU", "RNN"))
    yield (MS, "DynamicQuantizeLSTM"), _RECURRENT
    yield from (((MS, name), _EXPERTS) for name in ("MoE", "QMoE"))
    yield ("", "Attention"), Product(Kind.ATTENTION, attention.onnx_attention, attention.onnx_attention_made)
    yield from (((MS, name), _PROJECTED) for name in ("Attention", "QAttention"))
    yield from (((MS, name), _MULTI_HEAD) for name in ("MultiHeadAttention", "DecoderMaskedMultiHeadAttention"))
    yield (MS, "GroupQueryAttention"), _GROUPED


PRODUCTS: Mapping[tuple[str, str], Product] = dict(_rules())
