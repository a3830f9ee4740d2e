"""Further run: model and file once more, on other inputs and other sizes of open axes, for values that are small.

    first run     input_ids 2x8     sizes 2, 8, 16, …      and masks of 2x8
    further run   input_ids 1x5     sizes 1, 5, 10, …      what agrees in both is no chance

It costs less than the first: axes are shorter where they can be, and nothing is compared but samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from modelexport.errors import InputError, RuntimeFailed
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.sample import Sample, sample
from modelexport.graph.types import input_dims
from modelexport.verify.series import SeenRun

if TYPE_CHECKING:
    from modelexport.capture.arguments import CallArguments
    from modelexport.capture.export import TracedRun


# Runs that a value must agree in.
_ENOUGH = 2


def run_again(file: TaggedFile, run: TracedRun, first: SeenRun, seed: int) -> list[SeenRun]:
    """The first run, and others on inputs that both take: two in all that did the same work, if there are.

    A model leaves out the work of a mask that hides nothing; the file does it all the same.
    """
    runs = [first]
    for arguments in _other_arguments(file, run, seed):
        # A model has every right to refuse sizes, and a file may be right for one size only.
        with suppress(InputError, RuntimeFailed):
            runs.append(_run_both(file, run, arguments, seed))
        if sum(len(seen.run.ops) == len(runs[-1].run.ops) for seen in runs) >= _ENOUGH:
            break
    return runs


def _other_arguments(file: TaggedFile, run: TracedRun, seed: int) -> Iterator[CallArguments]:
    from modelexport.capture.arguments import resample_inputs
    from modelexport.capture.onnxruntime.session import assign_inputs

    free = set(assign_inputs(file.proto, run.arguments.arrays).values())
    for number, choose_size in enumerate((_smaller_size, _larger_size), start=1):
        resized = run.arguments.with_sizes(_other_sizes(file, run.arguments, choose_size))
        if resized is not None:
            other = resample_inputs(resized, seed + number)
            yield other.with_mask(free) or other
    if run.entry is None:
        for number in (1, 2):
            other = resample_inputs(run.arguments, seed + number)
            yield other.with_mask(free) or other


def _other_sizes(
    file: TaggedFile, arguments: CallArguments, choose_size: Callable[[int], int]
) -> Mapping[str, Mapping[int, int]]:
    """By argument and axis: another size for each axis that the file leaves open. Axes of one size get one size."""
    from modelexport.capture.onnxruntime.session import assign_inputs

    dims = {value.name: input_dims(value) or () for value in file.proto.graph.input}
    sizes: dict[str, Mapping[int, int]] = {}
    for name, source in assign_inputs(file.proto, arguments.arrays).items():
        shape = arguments.tensors[source].shape
        sizes[source] = {axis: choose_size(shape[axis]) for axis, dim in enumerate(dims[name]) if isinstance(dim, str)}
    return sizes


def _smaller_size(size: int) -> int:
    """Shorter, so that it costs less; never empty, and 1 only in place of 2."""
    return size + 1 if size < 2 else max(size // 2 + 1, 2) if size > 3 else size - 1


def _larger_size(size: int) -> int:
    return size + 1


def _run_both(file: TaggedFile, run: TracedRun, arguments: CallArguments, seed: int) -> SeenRun:
    from modelexport.capture.eager import TensorSpill, watch_run
    from modelexport.capture.hierarchy import run_model
    from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe, quiet
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
    from modelexport.capture.onnxruntime.session import bind_inputs

    with TensorSpill(0) as spill, EXPORT_LOCK, quiet(), exportable_moe(run.model), run.entered():
        watched = watch_run(run.model, arguments, spill, seed + 1)
    seen: dict[str, Sample] = {}

    def see(name: str, array: np.ndarray) -> None:
        seen[name] = sample(array)

    PiecewiseRun(file, often=False).run(bind_inputs(file.proto, arguments.arrays), see)
    return SeenRun(watched.run, watched.samples, seen)
