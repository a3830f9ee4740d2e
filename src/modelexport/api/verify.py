"""Holding a file against the model that it came from, or against another file of that model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.foreign import Source
from modelexport.api.surroundings import Clock, Progress
from modelexport.errors import UserError
from modelexport.record.verification import Tolerance, Verification

if TYPE_CHECKING:
    import torch


def verify(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path,
    model: torch.nn.Module | str | Path | None = None,
    *,
    against: str | Path | None = None,
    inputs: object = None,
    samples: int = 1,
    atol: float | None = None,
    rtol: float | None = None,
    min_sqnr: float | None = None,
    as_deployed: bool = False,
    proof: bool = True,
    task: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Compare the numbers of an ONNX file module by module, and prove its attributions by values.

    model    what the file was exported from; it runs, and what each module is given and returns is compared
    against  another file of the same model, in the place of the model; `model` then only makes the inputs
    inputs   as in `export`; or a sequence of .npz files, or a list of dictionaries, each of them one sample
    samples  how many inputs to run on; the first is the given or made one, the others are drawn like it
    as_deployed  judge the graph that ONNX Runtime makes of the file, with all optimizations, in its place
    """
    if model is None and against is None:
        raise UserError(
            "there is nothing to verify the file against",
            "Give the model that it was exported from (-m), or another file of that model (--against).",
        )
    if samples < 1:
        raise UserError(f"samples is {samples}", "Give 1 or more.")
    if any(not bound >= 0 for bound in (atol or 0.0, rtol or 0.0)) or min_sqnr != min_sqnr:  # noqa: PLR0124 - NaN
        raise UserError(f"no tolerances: atol {atol}, rtol {rtol}, min_sqnr {min_sqnr}", "Give numbers from 0 on.")
    if model is None and (text or image or input_specs):
        raise UserError("text, images and input specs need the model to make inputs from them", "Give it as well: -m.")
    source = None
    if model is not None:
        source = Source(
            model, None, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
        )
    from modelexport.api.file_verification import against_file
    from modelexport.api.verification import Plan, against_model

    plan = Plan(inputs, samples, seed, tuple(input), Tolerance(atol, rtol, min_sqnr), as_deployed, proof)
    clock = Clock(progress)
    if against is not None:
        return against_file(Path(file), Path(against), source, plan, clock)
    assert source is not None
    return against_model(Path(file), source, plan, clock)
