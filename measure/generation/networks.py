"""Networks that work together without generating: an encoder of sentences, pipelines that make images.

    compare_sentences(chain, folder)     {"model": 2e-7}                                against `encode`
    compare_pipeline(chain, folder)      {"unet": 4e-7, "vae_decoder": 1e-6, …}         against every call of a run

The library itself runs, at sizes of its own choice; what each network is given goes into its file.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from measure.generation.chain import Arrays, Chain
from measure.generation.pipelines import save_sentence_encoder, save_transformer_pipeline, save_unet_pipeline
from measure.generation.unread import find_unread
from measure.generation.witness import difference_of
from modelexport.capture.loading.pipelines import keep_sizes

KIND = "networks"
_SENTENCES = ["the rain in spain", "on it", "an end to the tea and the other things on the table"]
_PROMPT = "the hand of a tin"
_STEPS = 3


@dataclass(frozen=True)
class Networks:
    """
    save     writes the folder
    compare  the greatest difference for each file
    find_unread  of modules that are in no file, those that the model does not read
    task     that the export has to be told
    """

    save: Callable[[Path], None]
    compare: Callable[[Chain, Path], dict[str, float]]
    find_unread: Callable[[Path, tuple[str, ...]], tuple[str, ...]] = lambda _, __: ()
    task: str | None = None


def compare_sentences(chain: Chain, folder: Path) -> dict[str, float]:
    model = _load_sentences(folder)
    made = model.preprocess(_SENTENCES)
    (component,) = chain.components.values()
    feeds = {name: made[name].numpy() for name in component.shapes}
    return {component.name: difference_of(model.encode(_SENTENCES), component.run(feeds)["sentence_embedding"])}


def find_unread_sentences(folder: Path, absent: tuple[str, ...]) -> tuple[str, ...]:
    model = _load_sentences(folder)
    return find_unread(model, absent, lambda: model.encode(_SENTENCES))


def _load_sentences(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def compare_pipeline(chain: Chain, folder: Path) -> dict[str, float]:
    from diffusers import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(str(folder), local_files_only=True)
    pipeline.set_progress_bar_config(disable=True)
    worst: dict[str, float] = {}

    def compare(name: str, feeds: Mapping[str, Any], expected: torch.Tensor) -> None:
        component = chain.components[name]
        (got, *_) = component.run({key: np.asarray(feeds[key]) for key in component.shapes}).values()
        worst[name] = max(worst.get(name, 0.0), difference_of(expected.numpy(), got))

    with torch.no_grad(), ExitStack() as stack:
        for name, network in pipeline.components.items():
            if isinstance(network, torch.nn.Module) and name in chain.components:
                stack.enter_context(_compare_calls(name, network, compare))
        decode = pipeline.vae.decode

        def compare_decoding(latents: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            image = decode(latents, *args, **kwargs)
            compare("vae_decoder", {"latent_sample": latents}, image[0])
            compare("vae_encoder", {"sample": image[0]}, pipeline.vae.encode(image[0]).latent_dist.parameters)
            return image

        stack.enter_context(mock.patch.object(pipeline.vae, "decode", compare_decoding))
        pipeline(prompt=_PROMPT, num_inference_steps=_STEPS, output_type="np", **keep_sizes(pipeline))
    return worst


@contextmanager
def _compare_calls(name: str, network: torch.nn.Module, compare: Callable[..., None]) -> Iterator[None]:
    signature = inspect.signature(network.forward)

    def look(_: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], outputs: Any) -> None:
        compare(name, _flatten(signature.bind(*args, **kwargs).arguments), outputs[0])

    handle = network.register_forward_hook(look, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _flatten(arguments: Mapping[str, Any]) -> Arrays:
    """Tensors by name, also those inside of dictionaries."""
    tensors: Arrays = {}
    for name, value in arguments.items():
        if isinstance(value, Mapping):
            tensors |= _flatten(value)
        elif isinstance(value, torch.Tensor):
            tensors[name] = value.numpy(force=True)
    return tensors


NETWORKS = {
    "sentence-transformers": Networks(
        save_sentence_encoder, compare_sentences, find_unread_sentences, "sentence-similarity"
    ),
    "diffusers-unet": Networks(save_unet_pipeline, compare_pipeline),
    "diffusers-transformer": Networks(save_transformer_pipeline, compare_pipeline),
}
