"""All dialects by name."""

from __future__ import annotations

from modelexport.selecting.layer_ann import LAYER_ANN
from modelexport.selecting.modelopt import MODELOPT
from modelexport.selecting.named import NAMES
from modelexport.selecting.olive import OLIVE_SPLIT
from modelexport.selecting.ort import ORT_EXCLUDE
from modelexport.selecting.tensorrt import TENSORRT

DIALECTS = {dialect.name: dialect for dialect in (ORT_EXCLUDE, LAYER_ANN, OLIVE_SPLIT, MODELOPT, TENSORRT, NAMES)}
