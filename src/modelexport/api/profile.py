"""Profile: where the time of a file goes, module by module.

ONNX Runtime fuses nodes before it runs them, and its profiler times what is left. The optimized graph is saved, traced
back to the tagged file as `relink` does, and every kernel's time is charged to the modules whose work it does.
https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from modelexport.api.environment import Clock, Progress, need_torch
from modelexport.api.keywords import ProfileKeywords
from modelexport.api.opening import ensure_runnable, open_file
from modelexport.api.package import Package, find_package, refuse_for_file
from modelexport.api.prepare_file import fit_dtype, prepare_for_file
from modelexport.api.profile_run import ProfileSettings, profile_feed
from modelexport.errors import UserError
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.record.model_source import ModelSource
from modelexport.record.results.package_profile import PackageProfile
from modelexport.record.results.profile import Profile

if TYPE_CHECKING:
    import torch


@overload
def profile(file: str | Path, **options: Unpack[ProfileKeywords]) -> Profile | Any: ...
@overload
def profile(file: Package, **options: Unpack[ProfileKeywords]) -> PackageProfile: ...
def profile(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path | Package,
    *,
    before: str | Path | None = None,
    prompt: int | None = None,
    new_tokens: int | None = None,
    past: Sequence[int] = (),
    batch: int = 1,
    runs: int = 20,
    warmup: int = 5,
    optimization: str = "all",
    providers: Sequence[str] = (),
    threads: int = 0,
    inputs: str | Path | None = None,
    input: Sequence[str] = (),
    model: torch.nn.Module | str | Path | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Profile | PackageProfile:
    """Run a file in ONNX Runtime and charge the time of every kernel to the module whose work it does.

    file          or a package: prefill and decode steps apart; prompt, new_tokens, past and batch: `profile_package`
    before        a tagged file that this one was made from; it is asked instead of the record in the file
    warmup        runs before the timed ones: the first allocate memory and choose kernels
    optimization  ONNX Runtime's: all, extended, basic or none
    providers     execution providers, the first that can run a node does; those of ONNX Runtime's own choice if empty
    threads       within a kernel; 0 leaves it to ONNX Runtime
    inputs        an .npz file; made from the file where it is left out, `input` giving shapes: NAME=SHAPE
    model         that the file was made from: inputs are those of a run of it, and a cache is the one that it had
    """
    settings, clock = ProfileSettings(runs, warmup, optimization, tuple(providers), threads), Clock(progress)
    if (package := find_package(file)) is not None:
        from modelexport.api.profile_package import GenerationSizes, profile_opened_package

        _refuse_for_package(before=before, inputs=inputs, input=input, model=model)
        lengths = GenerationSizes(prompt, new_tokens, tuple(past), batch)
        return profile_opened_package(package, lengths, settings, seed, clock)
    _refuse_for_file(file, prompt=prompt, new_tokens=new_tokens, past=past)
    if inputs is not None and input:
        raise UserError(
            f"{inputs} has the inputs themselves, and {input[0]!r} is about one that is made",
            "Give either --inputs or --input.",
        )
    if model is not None and (inputs is not None or input):
        raise UserError("the inputs are given, and would also be made by the model", "Leave --model out.")
    from modelexport.capture.onnxruntime.inputs import SampleRequest, describe_made, sample_feeds

    path = Path(file)
    with clock.step("read"):
        opened = open_file(path) if before is None else open_tagged(path)
        ensure_runnable(opened)
        origin = opened if before is None else open_file(Path(before))
        request = SampleRequest(1, seed, tuple(input), () if inputs is None else (Path(inputs),))
        feed = next(sample_feeds(opened.sized_proto, opened.graph, request)) if model is None else {}
    if model is not None:
        feed = _run_inputs(opened, ModelSource(model, seed=seed), clock)
    made = describe_made(feed) if inputs is None and model is None else ""
    return profile_feed(opened, origin, feed, settings, clock, made)


def _refuse_for_file(file: str | Path | Package, **options: object) -> None:
    """Options that are about steps of generation, which one file alone does not take."""
    if any(value for value in options.values()):
        hint = "Give a folder, or leave them out: --input gives shapes of a file's inputs."
        raise refuse_for_file(file, "--prompt, --new-tokens and --past", hint)


def _refuse_for_package(**options: object) -> None:
    """Options that are about one run of a file; ignored, they would look as if they had been obeyed."""
    for name, value in options.items():
        if value:
            raise UserError(
                f"a package makes its inputs itself and is run often, and --{name} is about one run of a file",
                "Profile one of its files with it.",
            )


def _run_inputs(file: TaggedFile, source: ModelSource, clock: Clock) -> dict[str, np.ndarray]:
    """Inputs that the model was run on as well."""
    need_torch("running a model")
    from modelexport.capture.onnxruntime.session import bind_inputs

    return bind_inputs(file.proto, prepare_for_file(file, fit_dtype(file, source), clock).inputs.arrays)
