"""Pipelines: a diffusers folder as one model whose children are its networks, each an entry point.

    tiny-sd/  model_index.json      text_encoder, unet, vae, …
    load_pipeline("tiny-sd")        text_encoder   input_ids ─► last_hidden_state, …
                                    unet           sample, timestep, encoder_hidden_states ─► out_sample
                                    vae_decoder    latent_sample ─► sample
                                    vae_encoder    sample ─► latent_parameters

Nothing is known about a network: the pipeline runs two steps in two sizes, and its calls are recorded. What it passes
is what the file takes, and an axis is what differs. Names of files, inputs and outputs follow optimum.
https://huggingface.co/docs/diffusers/main/en/using-diffusers/loading
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from modelexport.capture.arguments import output_tensors
from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.cache import TensorLayout, cache_tensors, lay_out_constant
from modelexport.capture.generation.captures import BATCH, AxisNames, name_axes, name_first_axis, sample_tensors
from modelexport.capture.generation.steps import RecordedCall, record_calls
from modelexport.capture.isolation import seed_torch
from modelexport.capture.loading.dtypes import loading_dtype
from modelexport.capture.loading.parts import join_parts
from modelexport.capture.loading.pretrained import CONFIG, read_config, refuse_pickles
from modelexport.capture.loading.size_limits import ensure_buildable, ensure_readable
from modelexport.capture.loading.third_party import (
    LoadedModel,
    explain_failure,
    library,
    optional_library,
    quiet_transformers,
)
from modelexport.capture.silence import quiet, silence_loggers
from modelexport.errors import ModelUnloadable
from modelexport.record.model_source import ModelSource

_INDEX = "model_index.json"
_LIBRARIES = ("diffusers", "transformers")  # where classes of parts are looked up; others need code of the model
_PROMPTS = ("a picture of a cat", "a drawing of a dog", "a house by the sea")
_AXES = ("batch", "height", "width")
_ROUNDING = "use_resolution_binning"
# Rows, height and width of two runs, the latter in cells of the latent image.
_SMALL, _LARGE = (2, 8, 16), (3, 16, 24)
_LATENTS, _IMAGE = "latent_sample", "sample"

_Calls = Mapping[str, RecordedCall]


def is_pipeline_folder(folder: Path) -> bool:
    return (folder / _INDEX).is_file()


def load_pipeline(source: str, folder: Path, options: ModelSource) -> LoadedModel:
    """The networks of a pipeline as one model."""
    refuse_pickles(folder, options.allow_pickle)
    diffusers = optional_library("diffusers")
    dtype = loading_dtype(options)
    with (
        quiet_transformers(),
        silence_loggers("diffusers"),
        quiet(),
        explain_failure(f"diffusers cannot load {source!r}"),
    ):
        for name, kind in _find_components(folder, source):
            _measure_component(kind, folder / name, f"{source}/{name}")
        pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(
            str(folder),
            torch_dtype=dtype,
            local_files_only=True,
            use_safetensors=None if options.allow_pickle else True,
            trust_remote_code=options.trust_remote_code,
        )
    pipeline.set_progress_bar_config(disable=True)
    networks = {name: part for name, part in pipeline.components.items() if isinstance(part, torch.nn.Module)}
    if not networks:
        raise ModelUnloadable(f"{source!r} is a pipeline without networks", "Give the folder of another pipeline.")
    whole = join_parts({name: (part, {}) for name, part in networks.items()}).eval()
    with (
        quiet_transformers(),
        silence_loggers("diffusers"),
        quiet(),
        explain_failure(f"the pipeline {source!r} does not run"),
    ):
        runs = [_record_run(pipeline, networks, options, size) for size in (_SMALL, _LARGE)]
    entries = tuple(_find_entries(networks, *runs))
    return LoadedModel(
        whole, source, folder, dtype=dtype, entries=entries, kind="pipeline", beside=tuple(_files_beside(folder))
    )


def _find_components(folder: Path, source: str) -> Iterator[tuple[str, type]]:
    """Parts that the index names, each in a folder of its name, with their classes in diffusers or transformers.

    {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet2DConditionModel"], …}
    """
    for name, entry in read_config(folder / _INDEX).items():
        if not isinstance(entry, list) or len(entry) != 2 or name.startswith("_"):
            continue
        if {"/", "\\", ":"} & set(name) or name in ("", ".", ".."):
            raise ModelUnloadable(
                f"the {_INDEX} of {source!r} names a part outside of its folder: {name!r}",
                "Do not use this pipeline unless you know why it does so.",
            )
        if entry[0] in _LIBRARIES and isinstance(entry[1], str):
            kind = getattr(library(entry[0]), entry[1], None)
            if isinstance(kind, type):
                yield name, kind


def _measure_component(kind: Any, folder: Path, source: str) -> None:
    """Before any part is built: see `size_limits.py`. What has no configuration is left to diffusers."""
    described = getattr(kind, "config_class", None)
    path = folder / (CONFIG if described else getattr(kind, "config_name", None) or CONFIG)
    if not path.is_file() or not hasattr(described or kind, "from_dict" if described else "from_config"):
        return
    raw = read_config(path)

    def read(changed: Mapping[str, object]) -> Any:
        return described.from_dict(dict(changed)) if described else kind.from_config(dict(changed))

    def build(changed: Mapping[str, object]) -> torch.nn.Module:
        module: torch.nn.Module = kind._from_config(read(changed)) if described else read(changed)
        return module

    if described or not issubclass(kind, torch.nn.Module):
        ensure_readable(raw, read, source)
    if issubclass(kind, torch.nn.Module):
        ensure_buildable(raw, build, source)


def _files_beside(folder: Path) -> Iterator[Path]:
    """Configurations, schedulers and tokenizers: what is no weight."""
    for path in sorted((*folder.glob("*.json"), *folder.glob("*/*"))):
        if path.is_file() and (path.suffix in (".json", ".txt", ".model")):
            yield path


def _record_run(pipeline: Any, networks: Mapping[str, torch.nn.Module], options: ModelSource, size: Any) -> _Calls:
    """The last call of each network, and that of the autoencoder's `decode`, under `NAME_decoder`."""
    rows, height, width = size
    scale = getattr(pipeline, "vae_scale_factor", 8)
    recorded: dict[str, list[RecordedCall]] = {}
    with ExitStack() as stack, seed_torch(options.seed), torch.no_grad():
        for name, network in networks.items():
            recorded[name] = stack.enter_context(record_calls(network))
            if callable(getattr(network, "decode", None)):
                recorded[f"{name}_decoder"] = stack.enter_context(record_calls(network, "decode"))
        pipeline(
            prompt=list(_PROMPTS[:rows]),
            height=height * scale,
            width=width * scale,
            num_inference_steps=2,
            output_type="np",
            **keep_sizes(pipeline),
        )
    return {name: calls[-1] for name, calls in recorded.items() if calls}


def keep_sizes(pipeline: Any) -> dict[str, bool]:
    """Keywords under which a pipeline keeps the sizes that it is given.

    Some of them otherwise take the nearest size that they were trained with, and refuse a model without such a list:
    then two runs have one size, and no axis is found.
    """
    return dict.fromkeys({_ROUNDING} & inspect.signature(pipeline.__call__).parameters.keys(), False)


def _find_entries(networks: Mapping[str, torch.nn.Module], small: _Calls, large: _Calls) -> Iterator[EntryPoint]:
    names: AxisNames = dict(zip(zip(_SMALL, _LARGE, strict=True), _AXES, strict=True))
    for name, call in small.items():
        network = networks.get(name)
        if network is not None:
            yield _enter_network(name, network, call, large[name], names)
            continue
        coder = name.removesuffix("_decoder")
        yield from _enter_autoencoder(coder, networks[coder], call, large[name], names)


def _enter_network(
    name: str, network: torch.nn.Module, call: RecordedCall, enlarged: RecordedCall, names: AxisNames
) -> EntryPoint:
    layouts = tuple(_lay_out(call))
    inputs, larger = (_tensors_of(item, layouts) for item in (call, enlarged))
    # Guidance runs a network on twice the rows; they are the batch of the file all the same.
    rows = name_first_axis(inputs, larger)
    known = {pair: name for pair, name in names.items() if not rows or name != BATCH} | rows
    axes = name_axes(inputs, larger, known)
    names.update({pair: name for pair, name in known.items() if pair not in rows})
    inside = {inner for layout in layouts for inner in layout.sample}
    constants = {key: value for key, value in call.arguments.items() if not cache_tensors(value)}

    def forward(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        _join_axes(tensors, axes)
        plain = {key: tensor for key, tensor in tensors.items() if key not in inside}
        filled = {layout.argument: layout.fill(tensors) for layout in layouts}
        outputs = output_tensors(network(**constants, **plain, **filled))
        # The graph has an input of the name that the result of a network goes by.
        return {f"out_{key}" if key in inputs else _result_name(key): tensor for key, tensor in outputs.items()}

    return EntryPoint(name, forward, inputs, axes, others=(larger,), notes=tuple(_note_fixed(inputs, axes)))


def _note_fixed(inputs: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]) -> Iterator[str]:
    """Inputs of which nothing but the rows is open: a tokenizer fills up texts to one length, and files take no other.

    encoder_hidden_states [batch, 77, 768]
    """
    for name, tensor in inputs.items():
        named = axes.get(name, {})
        if tensor.ndim > 1 and named.keys() <= {0}:
            shape = ", ".join(str(named.get(axis, size)) for axis, size in enumerate(tensor.shape))
            yield f"{name} is fixed at [{shape}]: the pipeline passes it so in every size"


def _join_axes(tensors: Mapping[str, torch.Tensor], axes: Mapping[str, Mapping[int, str]]) -> None:
    """Tell torch that axes of one name are one size.

        sample [s95, 4, 8, 16], mask [s42, 120]   both rows are called `batch`: s42 is s95

    A symbol is made for each axis of each input. Where only a reshape joins them, a size such as `s42 // s95` is left
    over: it is always 1, and torch refuses to broadcast it.
    """
    first: dict[str, int | torch.SymInt] = {}
    for name, named in axes.items():
        for axis, what in named.items():
            size = tensors[name].shape[axis]
            torch._check(first.setdefault(what, size) == size)  # type: ignore[no-untyped-call]


def _result_name(name: str) -> str:
    """Networks that return a plain tuple have a result without a name: the denoised sample."""
    return "out_sample" if name == "output" else name


def _lay_out(call: RecordedCall) -> Iterator[TensorLayout]:
    for name, value in call.arguments.items():
        if not isinstance(value, torch.Tensor) and cache_tensors(value):
            layout = lay_out_constant(name, value)
            yield TensorLayout(layout.argument, layout.template, layout.paths)


def _tensors_of(call: RecordedCall, layouts: tuple[TensorLayout, ...]) -> dict[str, torch.Tensor]:
    filled = [TensorLayout(item.argument, call.arguments[item.argument], item.paths) for item in layouts]
    return sample_tensors(call.arguments, filled)


def _enter_autoencoder(
    name: str, coder: Any, call: RecordedCall, enlarged: RecordedCall, names: AxisNames
) -> Iterator[EntryPoint]:
    latents, larger = (next(iter(cache_tensors(dict(item.arguments)).values())) for item in (call, enlarged))

    def decode(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        return {_IMAGE: coder.decode(tensors[_LATENTS], return_dict=False)[0]}

    axes = name_axes({_LATENTS: latents}, {_LATENTS: larger}, names)
    yield EntryPoint(f"{name}_decoder", decode, {_LATENTS: latents}, axes, others=({_LATENTS: larger},))
    if not callable(getattr(coder, "encode", None)):
        return
    with torch.no_grad():
        images = [coder.decode(item, return_dict=False)[0] for item in (latents, larger)]

    def encode(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        encoded = coder.encode(tensors[_IMAGE], return_dict=False)[0]
        parameters = getattr(encoded, "parameters", None)
        # A distribution is handed on as it is; sampling from it is not the file's business.
        return {"latent_parameters": parameters} if isinstance(parameters, torch.Tensor) else {_LATENTS: encoded}

    axes = {_IMAGE: {0: _AXES[0], 2: _AXES[1], 3: _AXES[2]}}
    yield EntryPoint(f"{name}_encoder", encode, {_IMAGE: images[0]}, axes, others=({_IMAGE: images[1]},))
