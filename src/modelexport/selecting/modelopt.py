"""Exclusion for NVIDIA ModelOpt: keywords of `modelopt.onnx.quantization.quantize` and of its AutoCast.

Names are regular expressions there, and are compared from their start on: `MatMul_1` would mean `MatMul_10` as well.
"""

from __future__ import annotations

import json
import re

from modelexport.selecting.dialect import Dialect, Selection, Settings, Sight, Text


def write(selection: Selection, settings: Settings) -> Text:  # noqa: ARG001 - there are none for it
    patterns = [f"^{re.escape(name)}$" for name in dict.fromkeys(node.name for node in selection.nodes)]
    return Text(json.dumps({"nodes_to_exclude": patterns}, indent=1) + "\n")


MODELOPT = Dialect("modelopt", "nodes_to_exclude of NVIDIA ModelOpt, as JSON", write, Sight.MAIN)
