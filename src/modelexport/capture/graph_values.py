"""Running an ONNX graph once, with a fingerprint of every value kept."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from modelexport.capture.pieces import PiecewiseRun
from modelexport.errors import ExtraMissing, RuntimeFailed
from modelexport.graph.contents import contents
from modelexport.graph.fingerprint import fingerprint
from modelexport.graph.opened import ModelFile
from modelexport.record.signals import Fingerprint, GraphValues


def graph_values(file: ModelFile, inputs: Mapping[str, np.ndarray]) -> GraphValues:
    """Fingerprints of all values of the main graph; those before the failure if ONNX Runtime cannot run all of it."""
    prints = _of_weights(file)

    def see(name: str, array: np.ndarray) -> None:
        prints[name] = fingerprint(array)

    try:
        PiecewiseRun(file, often=False).run(inputs, see)
    except (RuntimeFailed, ExtraMissing) as error:
        return GraphValues(prints, error.message)
    return GraphValues(prints)


def weights_only(file: ModelFile, failure: str) -> GraphValues:
    """Fingerprints of the initializers, for a graph that cannot be run."""
    return GraphValues(_of_weights(file), failure)


def _of_weights(file: ModelFile) -> dict[str, Fingerprint]:
    return {name: fingerprint(array) for name, array in contents(file)}
