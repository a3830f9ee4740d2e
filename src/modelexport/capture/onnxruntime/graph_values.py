"""Graph values: fingerprints of all that one run of a file makes, inside of bodies too."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from modelexport.capture.onnxruntime.bodies import BodyRuns
from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
from modelexport.errors import ExtraMissing, RuntimeFailed
from modelexport.graph.file.reading import ModelFile, initializer_arrays
from modelexport.graph.fingerprint import fingerprint
from modelexport.record.signals import Fingerprint, GraphValues


def fingerprint_values(file: ModelFile, inputs: Mapping[str, np.ndarray]) -> GraphValues:
    """Fingerprints of all values; those before the failure if ONNX Runtime cannot run all of the graph."""
    prints = dict(fingerprint_weights(file, "").prints)
    inside: dict[str, tuple[Fingerprint, ...]] = {}
    failure = ""

    def see(name: str, array: np.ndarray) -> None:
        prints[name] = fingerprint(array)

    def see_inside(name: str, _round: int, array: np.ndarray) -> None:
        inside[name] = (*inside.get(name, ()), fingerprint(array))

    try:
        PiecewiseRun(file, often=False).run(inputs, see, BodyRuns(file, see_inside).visit)
    except (RuntimeFailed, ExtraMissing) as error:
        failure = error.message
    return GraphValues(prints, failure, inside=inside)


def fingerprint_weights(file: ModelFile, failure: str) -> GraphValues:
    """Fingerprints of the initializers, for a graph that cannot be run."""
    return GraphValues({name: fingerprint(array) for name, array in initializer_arrays(file)}, failure)
