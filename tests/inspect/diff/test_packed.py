"""Weights of four bits."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper, numpy_helper
from tests.support.stacks import WIDTH, Save, node_of, stack, weight_of

import modelexport as mx
from modelexport.record.results.diff import WeightForm

BLOCK = 16


@pytest.mark.parametrize("zeros", [False, True])
def test_packed_weights_are_quantized_ones(save: Save, zeros: bool) -> None:
    model, other = stack([0, 1]), stack([0, 1])
    weight = numpy_helper.to_array(weight_of(model, "l1.w"))
    scales = np.abs(weight).max(axis=0) / 7
    middle = np.full(WIDTH, 8, np.uint8) + np.arange(WIDTH, dtype=np.uint8) % 2 * zeros
    numbers = np.clip(np.rint(weight / scales) + middle, 0, 15).astype(np.uint8)
    packed = np.zeros((WIDTH, 1, BLOCK // 2), np.uint8)
    packed[:, 0, : WIDTH // 2] = (numbers[0::2] | numbers[1::2] << 4).T
    weights = {"packed": packed, "scales": scales.astype(np.float32), **({"zeros": middle} if zeros else {})}
    other.graph.initializer.remove(weight_of(other, "l1.w"))
    other.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    node = helper.make_node("MatMulNBits", ["l0.out", *weights], ["l1.mm"], domain="com.microsoft")
    node.attribute.extend(
        helper.make_attribute(name, value)
        for name, value in {"K": WIDTH, "N": WIDTH, "bits": 4, "block_size": BLOCK}.items()
    )
    node_of(other, "l1.mm").CopyFrom(node)
    other.opset_import.add(domain="com.microsoft", version=1)
    found = mx.diff(save(model), save(other))
    [(_, change)] = found.weight_changes()
    assert change.form is WeightForm.QUANTIZED
    assert change.left is not None
    assert change.right is not None
    assert (change.left.name, change.right.name) == ("l1.w", "packed")
    assert change.largest == pytest.approx(np.abs((numbers - middle.astype(float)) * scales - weight).max(), rel=1e-5)
    assert change.relative is not None
    assert 0 < change.relative < 0.15
