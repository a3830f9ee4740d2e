"""Verify: hold a file against the model that it came from, or against another file of that model.

    verify("bert.onnx", model)                       numbers module by module, weights, and a proof of attributions
    verify("int8.onnx", against="bert.onnx")         the same numbers, without torch

`verify_model` has the comparison with a model; the one with a file is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from modelexport.api.environment import Clock, Progress
from modelexport.api.keywords import VerifyKeywords
from modelexport.api.opening import ensure_record, ensure_runnable, note_source
from modelexport.api.options import NEW_TOKENS, ChainOptions, VerifyOptions, parse_tolerance
from modelexport.api.package import Package, find_package, refuse_for_file
from modelexport.api.verify_file import link_files, verify_against_file
from modelexport.api.verify_model import verify_against_model
from modelexport.capture.memory import running_within
from modelexport.errors import RuntimeFailed, UserError
from modelexport.graph.file.mapped_memory import limit_memory
from modelexport.graph.file.reading import largest_weight
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged
from modelexport.graph.soundness import ensure_sound
from modelexport.record.amounts import read_size
from modelexport.record.model_source import ModelSource
from modelexport.record.results.package_verification import PackageVerification
from modelexport.record.results.verification import Verification

if TYPE_CHECKING:
    import torch


@overload
def verify(
    file: str | Path,
    model: torch.nn.Module | str | Path | None = None,
    *,
    against: str | Path | Package | None = None,
    **options: Unpack[VerifyKeywords],
) -> Verification | Any: ...
@overload
def verify(
    file: Package,
    model: torch.nn.Module | str | Path | None = None,
    *,
    against: str | Path | Package | None = None,
    **options: Unpack[VerifyKeywords],
) -> PackageVerification: ...
def verify(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path | Package,
    model: torch.nn.Module | str | Path | None = None,
    *,
    against: str | Path | Package | None = None,
    new_tokens: int | None = None,
    grid: bool = True,
    inputs: object = None,
    samples: int = 1,
    atol: float | None = None,
    rtol: float | None = None,
    min_sqnr: float | None = None,
    as_deployed: bool = False,
    proof: bool = True,
    branches: bool = True,
    memory: int | str | None = None,
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
) -> Verification | PackageVerification:
    """Compare the numbers of an ONNX file module by module, and prove its attributions by values.

    file     or a package: each of its files, and all of them as a chain (`verify_package`)
    model    what the file was exported from; it runs, and what each module is given and returns is compared
    against  another file of the same model, in the place of the model; `model` then only makes the inputs
    inputs   as in `export`; or a sequence of .npz files, or a list of dictionaries, each of them one sample
    samples  how many inputs to run on; the first is the given or made one, the others are drawn like it
    as_deployed  judge the graph that ONNX Runtime makes of the file, with all optimizations, in its place
    branches  also search for inputs that take another path through the model, and compare the outputs on them
    memory  such as "4GB": model and file run in pieces, and give mapped weights back
    new_tokens, grid  of a package, as in `verify_package`
    """
    _ensure_reference(model, against, samples)
    tolerance = parse_tolerance(atol, rtol, min_sqnr)
    if model is None and (text or image or input_specs):
        raise UserError("text, images and input specs need the model to make inputs from them", "Give it as well: -m.")
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    options = VerifyOptions(source, samples, tolerance, as_deployed, proof, branches, read_size(memory, "--memory"))
    clock = Clock(progress)
    if (package := find_package(file)) is not None:
        from modelexport.api.verify_package import verify_opened_package

        return verify_opened_package(package, against, options, ChainOptions(new_tokens or NEW_TOKENS, grid), clock)
    if new_tokens is not None or not grid:
        raise refuse_for_file(file, "--new-tokens and --no-grid", "Give a folder, or leave them out.")
    return _verify_file(Path(file), against, options, clock)


def _ensure_reference(model: object, against: object, samples: int) -> None:
    # Without either there are numbers, and nothing to hold them against.
    if model is None and against is None:
        raise UserError(
            "there is nothing to verify the file against",
            "Give the model that it was exported from (-m), or another file of that model (--against).",
        )
    if samples < 1:
        raise UserError(f"samples is {samples}", "Give 1 or more.")


def _verify_file(
    path: Path, against: str | Path | Package | None, options: VerifyOptions, clock: Clock
) -> Verification:
    tagged = open_tagged(path)
    ensure_runnable(tagged)
    if against is None:
        ensure_record(tagged)
        with _explaining_refusals(tagged), running_within(options.memory, largest_weight(tagged)) as use:
            verification = verify_against_model(tagged, options, clock)
        return replace(verification, notes=(*verification.notes, *tagged.key_notes, *use.notes))
    other = open_tagged(Path(against))
    ensure_runnable(other)
    files = link_files(tagged, other)
    with _explaining_refusals(*files), limit_memory(options.memory, max(map(largest_weight, files))) as use:
        verification = verify_against_file(*files, options, clock)
    return replace(verification, notes=(*verification.notes, *note_source(*files), *tagged.key_notes, *use.notes))


@contextmanager
def _explaining_refusals(*files: TaggedFile) -> Iterator[None]:
    """What ONNX Runtime does not run because it is no graph is said in our words: who reads what nobody makes."""
    try:
        yield
    except RuntimeFailed:
        for file in files:
            ensure_sound(file.proto, file.graph, str(file.path))
        raise
