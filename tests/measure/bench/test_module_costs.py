"""What the FLOPs of files are held against."""

from __future__ import annotations

import torch
from measure.bench.module_costs import torch_flops


def test_the_reference_sees_through_the_fast_path_of_transformers() -> None:
    """Otherwise torch counts nothing there, and there is nothing to compare with."""
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval().requires_grad_(False)
    rows, width, wide = 3, 8, 16
    projections = 2 * rows * width * (3 * width + width)
    attention = 2 * 2 * rows * rows * width
    assert torch_flops(layer, torch.randn(1, rows, width))[""] == projections + attention + 2 * 2 * rows * width * wide
