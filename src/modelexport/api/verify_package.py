"""Verification of a package: hold its files against the model that they came from, or against another package.

    verify_package("qwen3/", model)                       each file alone, and all of them as a chain that generates
    verify_package("qwen3-int4/", against="qwen3/")       file by file, without torch

Each file is verified as `verify` does a file (`verify_model.py`), on the entry point of the model that it was made
from; the chain is in `verify_chain.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.environment import Clock, Progress, need_torch
from modelexport.api.model_runs import overlap_notes
from modelexport.api.opening import ensure_record
from modelexport.api.options import NEW_TOKENS, ChainOptions, VerifyOptions, parse_tolerance
from modelexport.api.package import Package, ensure_packages, find_package, open_files, open_package, refuse_for_folder
from modelexport.api.prepare_file import fit_dtype
from modelexport.api.step_comparison import ComparedFile
from modelexport.api.verify_chain import verify_chain
from modelexport.api.verify_file import verify_against_file
from modelexport.api.verify_model import verify_against_model
from modelexport.errors import InputError, ModelMismatch, RuntimeFailed, UserError, some_of
from modelexport.inspect.package.pairs import find_joint_differences, find_other_connections
from modelexport.record.model_source import ModelSource
from modelexport.record.package import ComponentInfo
from modelexport.record.results.package_verification import PackageVerification
from modelexport.record.results.verification import Verification

if TYPE_CHECKING:
    import torch

    from modelexport.capture.entry_point import EntryPoint
    from modelexport.capture.generation.prepare import Components
    from modelexport.capture.onnxruntime.chain import FileChain
    from modelexport.record.configuration import ModelConfiguration

_MERGED = "decoder_merged"  # one decoder for all steps of an encoder-decoder


def verify_package(  # noqa: PLR0913 - the keywords are the command line's options
    package: str | Path | Package,
    model: torch.nn.Module | str | Path | None = None,
    *,
    against: str | Path | Package | None = None,
    new_tokens: int = NEW_TOKENS,
    grid: bool = True,
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
) -> PackageVerification:
    """Compare the numbers of every file of a package, alone and while the files generate together.

    model       what the package was exported from; it generates, and the files after it, step by step
    against     another package of the same model, in the place of the model; files are compared one by one
    new_tokens  steps of the chain: the prefill, and one for each token after the first
    grid        also compare single steps of other sizes: batch, past, query, padding
    Other keywords are those of `verify`.
    """
    opened = package if isinstance(package, Package) else open_package(package)
    tolerance = parse_tolerance(atol, rtol, min_sqnr)
    source = ModelSource(
        model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
    )
    options = VerifyOptions(source, samples, tolerance, as_deployed, proof)
    return verify_opened_package(opened, against, options, ChainOptions(new_tokens, grid), Clock(progress))


def verify_opened_package(
    package: Package, against: str | Path | Package | None, options: VerifyOptions, chain: ChainOptions, clock: Clock
) -> PackageVerification:
    refuse_for_folder(package.folder, "--memory", options.memory)
    if (options.source.model is None) == (against is None):
        raise UserError(
            f"{package.folder} is verified against one thing: its model, or another package",
            "Give the model that it was exported from (-m), or another package of that model (--against).",
        )
    if against is None:
        return _verify_against_model(package, options, chain, clock)
    return _verify_against_package(*ensure_packages(package, find_package(against) or against), options, clock)


def _verify_against_package(
    package: Package, believed: Package, options: VerifyOptions, clock: Clock
) -> PackageVerification:
    """File by file; both run on what the believed package itself makes of made-up tokens."""
    both = [name for name in package if name in believed]
    if not both:
        raise ModelMismatch(
            f"{package.folder} and {believed.folder} have no component in common",
            f"The first has {', '.join(package)}, the second {', '.join(believed)}.",
        )
    with clock.step("inputs"):
        feeds = _made_feeds(believed, options.source.seed)
    components = {}
    for name in both:
        source = replace(options.source, inputs=feeds.get(name))
        chosen = replace(options, source=source)
        components[name] = verify_against_file(package[name].file, believed[name].file, chosen, clock)
    missing = tuple(name for name in (*package, *believed) if name not in both)
    connections = tuple(find_other_connections(believed.info, package.info))
    differences = find_joint_differences(believed.info, package.info)
    return PackageVerification(
        str(package.folder),
        str(believed.folder),
        components,
        missing=missing,
        connections=connections,
        notes=tuple(text for text in differences if text not in connections),
        seconds=clock.seconds,
    )


def _verify_against_model(
    package: Package, options: VerifyOptions, chain: ChainOptions, clock: Clock
) -> PackageVerification:
    need_torch("running a model")
    from modelexport.capture.generation.prepare import prepare_components
    from modelexport.capture.onnxruntime.chain import FileChain

    for component in package.components.values():
        ensure_record(component.file)
    first = next(iter(package.components.values()))

    def refuse(_: ModelConfiguration, generates: bool) -> None:
        if not generates and any(component.info.cache for component in package.components.values()):
            raise ModelMismatch(
                f"{package.folder} has a cache, and the model does not generate",
                "Give the model that the package was exported from.",
            )

    source = fit_dtype(first.file, options.source)
    components = prepare_components(source, clock.step, refuse, merged=_MERGED in package)
    compared = pair_components(package, components)
    files = None
    if any(component.info.cache for component in package.components.values()):
        files = FileChain(package.info, open_files(package))
        with clock.step("inputs"):
            components, compared = fit_samples(files, components, compared)
    alone = {name: _verify_entry(components, item, options, clock) for name, item in compared.items() if chain.alone}
    verification = PackageVerification(str(package.folder), components.source, alone, notes=components.notes)
    if files is not None:
        checks = verify_chain(files, components, compared, options, chain, clock)
        notes = (*verification.notes, *checks.notes)
        verification = replace(verification, steps=checks.steps, grid=checks.grid, tokens=checks.tokens, notes=notes)
    return replace(verification, seconds=clock.seconds)


def pair_components(package: Package, components: Components) -> dict[str, ComparedFile]:
    """Each file with the entry point that it was made from; ModelMismatch for a model that has no such entry point.

    decoder           the entry point of that name
    prefill, decode   those that take the same inputs: others name their files as they like
    """
    for component in package.components.values():
        overlap_notes(component.file, components.module, components.source)
    entries = {entry.name: entry for entry in components.entries}
    pairs = {}
    for name, item in package.components.items():
        entry = entries.get(name) or _find_by_inputs(item.info, components.entries)
        if entry is None:
            taken = "; ".join(f"{each.name}: {some_of(list(each.inputs))}" for each in components.entries)
            raise ModelMismatch(
                f"{package.folder} has {name}, which takes {some_of(item.info.inputs)}, and {components.source} has no "
                f"part of this name or with these inputs ({taken})",
                "Give the model that the package was exported from. Files that others made with other names for their "
                "inputs are verified one by one: `modelexport verify FILE -m MODEL`.",
            )
        pairs[name] = ComparedFile(name, item.file, replace(entry, name=name))
    return pairs


def fit_samples(
    files: FileChain, components: Components, compared: Mapping[str, ComparedFile]
) -> tuple[Components, dict[str, ComparedFile]]:
    """Entry points on samples that the runtime takes, and the prompt with as many rows; a note says which are others.

    GroupQueryAttention refuses 2 rows of 3 tokens behind a past     one row without padding, as the file is meant for
    """
    fitted = dict(compared)
    for name, item in compared.items():
        refusal = _find_refusal(files, item)
        if not refusal:
            continue
        from modelexport.capture.generation.file_samples import cut_samples, find_unpadded_row

        cut = (replace(item, entry=entry) for entry in cut_samples(item.entry, {}))
        runnable = next((other for other in cut if not _find_refusal(files, other)), None)
        if runnable is None:
            continue  # the error of the run says why
        row = find_unpadded_row(item.entry)
        prompt = {key: tensor[row : row + 1] for key, tensor in components.inputs.items()}
        fitted[name] = replace(runnable, entry=replace(runnable.entry, prompt=prompt))
        note = f"{name} is compared on one row without padding, because ONNX Runtime refuses more: {refusal}"
        components = replace(components, inputs=prompt, notes=(*components.notes, note))
    return components, fitted


def _find_refusal(files: FileChain, item: ComparedFile) -> str:
    """What an operator of the runtime says to the sample of an entry point; empty if it runs, or fails otherwise."""
    from modelexport.capture.arguments import to_array
    from modelexport.capture.onnxruntime.session import bind_inputs

    arrays = {name: to_array(tensor) for name, tensor in item.entry.inputs.items()}
    try:
        files.run_file(item.name, bind_inputs(item.file.proto, arrays))
    except InputError:
        return ""
    except RuntimeFailed as error:
        return files.find_refusal(item.name, error)
    return ""


def _find_by_inputs(component: ComponentInfo, entries: Sequence[EntryPoint]) -> EntryPoint | None:
    """The entry point with the inputs of a component; also a first call that takes no cache."""
    from modelexport.capture.generation.file_entry import find_first_call

    first_calls = (find_first_call(entry) for entry in entries)
    candidates = (entry for entry in (*entries, *first_calls) if entry is not None)
    return next((entry for entry in candidates if entry.inputs.keys() == set(component.inputs)), None)


def _verify_entry(components: Components, compared: ComparedFile, options: VerifyOptions, clock: Clock) -> Verification:
    from modelexport.capture.arguments import CallArguments
    from modelexport.capture.export import PreparedModel

    entry = compared.entry
    arguments = CallArguments(dict(entry.inputs))
    prepared = PreparedModel(components.module, arguments, entry.axes, components.source, entry=entry)
    return verify_against_model(compared.file, options, clock, prepared)


def _made_feeds(package: Package, seed: int) -> dict[str, object]:
    """What each file is fed while the package generates; nothing for one that does not, whose inputs are made up."""
    from modelexport.capture.onnxruntime.generated_feeds import make_feeds

    if not any(component.info.cache for component in package.components.values()):
        return {}
    files = open_files(package)
    return dict(make_feeds(package.info, files, seed=seed))
