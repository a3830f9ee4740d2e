"""Media inside of text: images, videos and sounds become features, which take the place of tokens.

    model.base_model.get_image_features(pixel_values, …)     ─► vision_encoder: image_features
    forward(input_ids, mm_encoder_outputs={"image": …})      ─► embedding: inputs_embeds, what the language model gets

transformers has one method for each modality, `get_image_features`, `get_video_features`, `get_audio_features`;
`generate` calls those of pictures before `forward`. Their result has the features as `pooler_output`: one tensor, or a
list with one for each picture. A graph cannot make a list as long as the batch, so it returns what a module computed
before it was cut into pieces.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from modelexport.capture.generation.cache import Path, cache_tensors, read_path
from modelexport.capture.generation.captures import are_close
from modelexport.capture.generation.packed_images import PackedAttention, find_packed_attention, make_uneven

# The files that encoders of modalities become.
ENCODERS = {"image": "vision_encoder", "video": "video_encoder", "audio": "audio_encoder"}


@dataclass(frozen=True)
class MediaInput:
    """One modality of a model, and the inputs that its features are computed from."""

    modality: str
    arguments: Mapping[str, torch.Tensor]

    @property
    def encoder(self) -> str:
        return ENCODERS[self.modality]

    @property
    def features(self) -> str:
        return f"{self.modality}_features"

    @property
    def method(self) -> str:
        return f"get_{self.modality}_features"


def find_media(model: torch.nn.Module, inputs: Mapping[str, torch.Tensor]) -> tuple[MediaInput, ...]:
    """The modalities that these inputs hold, by the methods that the model has for them."""
    media = []
    for modality in ENCODERS:
        method = getattr(getattr(model, "base_model", model), f"get_{modality}_features", None)
        if modality not in getattr(model, "input_modalities", ()) or method is None:
            continue
        arguments = {name: inputs[name] for name in inspect.signature(method).parameters if name in inputs}
        if any(tensor.is_floating_point() for tensor in arguments.values()):
            media.append(MediaInput(modality, arguments))
    return tuple(media)


def join_features(outputs: Any) -> torch.Tensor:
    """All features as one list of vectors, whichever picture they are of."""
    pooled = getattr(outputs, "pooler_output", outputs)
    joined: torch.Tensor = torch.cat(list(pooled)) if isinstance(pooled, Sequence) else pooled
    return joined.flatten(0, -2)


@dataclass(frozen=True)
class FeatureSource:
    """A module whose output holds all features, and where in the output."""

    module: torch.nn.Module
    path: Path


@dataclass(frozen=True)
class FeaturesStep:
    """The encoder of a modality as a function of named tensors.

    source  the module that the features are taken from; None to take what the method returns
    packed  how it attends to images that lie in one list; None where they do not
    """

    call: Callable[..., Any]
    name: str
    source: FeatureSource | None = None
    packed: PackedAttention | None = None

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        with nullcontext() if self.packed is None else self.packed.open(inputs):
            if self.source is None:
                return {self.name: join_features(self.call(**inputs, return_dict=True))}
            taken: list[torch.Tensor] = []
            with _stop_after(self.source, taken), suppress(_CallSeen):
                self.call(**inputs, return_dict=True)
            return {self.name: taken[-1].flatten(0, -2)}


def describe_features(model: torch.nn.Module, media: MediaInput) -> FeaturesStep:
    method = getattr(model.base_model, media.method)
    step = FeaturesStep(method, media.features)
    outputs = method(**media.arguments, return_dict=True)
    if not isinstance(getattr(outputs, "pooler_output", None), Sequence):
        return step
    features = join_features(outputs)
    for source in _find_sources(model, lambda: method(**media.arguments, return_dict=True), features):
        stopped = FeaturesStep(method, media.features, source)
        with suppress(Exception):  # another use of the output than the one that stops
            if are_close(stopped(**media.arguments)[media.features], features):
                return _pack(model, stopped, media)
    return step


def encode_media(model: torch.nn.Module, media: MediaInput) -> Any:
    """What the model's own method returns for these media."""
    return getattr(model.base_model, media.method)(**media.arguments, return_dict=True)


def _pack(model: torch.nn.Module, step: FeaturesStep, media: MediaInput) -> FeaturesStep:
    """The step for any number of images of any size, if that gives what the model gives, else the step itself."""
    packed = find_packed_attention(model, step, media.arguments)
    if packed is None:
        return step
    general = replace(step, packed=packed)
    with suppress(Exception):
        uneven = make_uneven(media.arguments, packed.patches)
        if all(
            are_close(general(**each)[step.name], join_features(step.call(**each, return_dict=True)))
            for each in (media.arguments, uneven)
        ):
            return general
    return step


def _find_sources(model: torch.nn.Module, call: Callable[[], object], features: torch.Tensor) -> list[FeatureSource]:
    """Modules whose output is `features` in another shape, the last one first."""
    sources: list[FeatureSource] = []

    def watch(module: torch.nn.Module, _: object, output: Any) -> None:
        for path, tensor in cache_tensors(output).items():
            same = tensor.dim() > 1 and tensor.numel() == features.numel() and tensor.shape[-1] == features.shape[-1]
            if same and torch.equal(tensor.flatten(0, -2), features):
                sources.append(FeatureSource(module, path))

    with ExitStack() as stack:
        for module in model.modules():
            stack.callback(module.register_forward_hook(watch).remove)
        call()
    return sources[::-1]


class _CallSeen(Exception):
    """Nothing after the module that was waited for is of interest."""


class _Unusable:
    """In the place of a module's output: whoever uses it is stopped, outside of all modules, so that hooks are even."""

    def __getattr__(self, _: str) -> Any:
        raise _CallSeen

    def __iter__(self) -> Iterator[Any]:
        raise _CallSeen

    def __getitem__(self, _: object) -> Any:
        raise _CallSeen

    def __len__(self) -> int:
        raise _CallSeen


@contextmanager
def _stop_after(source: FeatureSource, taken: list[torch.Tensor]) -> Iterator[None]:
    """While this is open, nothing is computed after the module, and its output cannot be used.

    What follows is the cutting of features into pieces, which would fix the number of pictures in a graph.
    """

    def take(_: torch.nn.Module, __: object, output: Any) -> Any:
        taken.append(read_path(output, source.path))
        return _Unusable()

    handle = source.module.register_forward_hook(take)
    try:
        with _StopComputing(taken):
            yield
    finally:
        handle.remove()


class _StopComputing(TorchFunctionMode):
    """Functions of torch, until something was taken."""

    def __init__(self, taken: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._taken = taken

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._taken:
            raise _CallSeen
        return function(*args, **(kwargs or {}))


@dataclass(frozen=True)
class EmbeddingStep:
    """Tokens and features as the language model gets them: a call of the model in which its decoder does nothing.

    call       the model's own `forward`
    constants  arguments of the first call of `generate` that hold no media
    decoder    the language model
    answer     makes the decoder's output of its last hidden state
    outputs    what each modality's method returned, as the model's code wants it
    given      media for a `forward` that calls these methods itself: they return the features, whatever these media are
    """

    call: Callable[..., Any]
    constants: Mapping[str, Any]
    decoder: torch.nn.Module
    answer: Callable[..., Any]
    outputs: Mapping[str, Any]
    given: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def __call__(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        features = {modality: inputs[f"{modality}_features"] for modality in self.outputs}
        media = {modality: _fill_features(self.outputs[modality], tensor) for modality, tensor in features.items()}
        plain = {name: tensor for name, tensor in inputs.items() if name.removesuffix("_features") not in features}
        handed: dict[str, Any] = dict(self.given) or {"mm_encoder_outputs": media}
        with _idle(self.decoder, self.answer) as calls, _scattering_rows(), ExitStack() as stack:
            for modality, outputs in media.items() if self.given else ():
                stack.enter_context(_answering(self.call.__self__, f"get_{modality}_features", outputs))  # type: ignore[attr-defined]
            self.call(**self.constants, **plain, **handed)
        return {"inputs_embeds": calls[0]}


@contextmanager
def _answering(model: torch.nn.Module, method: str, answer: Any) -> Iterator[None]:
    """While this is open, a method of the model, and of the model inside of it, returns this."""
    owners = [owner for owner in {model, model.base_model} if hasattr(owner, method)]
    for owner in owners:
        setattr(owner, method, lambda *_, **__: answer)
    try:
        yield
    finally:
        for owner in owners:
            delattr(owner, method)


def _fill_features(outputs: Any, features: torch.Tensor) -> Any:
    filled, pooled = copy.copy(outputs), outputs.pooler_output
    is_list = isinstance(pooled, Sequence)
    filled["pooler_output"] = [features] if is_list else features.reshape(-1, *pooled.shape[1:])
    return filled


@contextmanager
def _scattering_rows() -> Iterator[None]:
    """While this is open, vectors are put in the place of others row by row, and there may be none of them.

    A graph made of `masked_scatter` itself reads a first element in any case: it fails for text without media.
    """
    scatter = torch.Tensor.masked_scatter

    def scatter_rows(tensor: torch.Tensor, mask: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        if mask.shape[:-1] != tensor.shape[:-1]:
            return scatter(tensor, mask, source)
        width = tensor.shape[-1]
        rows = torch.cat([source.reshape(-1, width), source.new_zeros(1, width)])
        chosen = mask[..., 0].flatten()
        index = (chosen.to(torch.int64).cumsum(0) - 1).clamp(min=0)
        return torch.where(mask, rows[index].reshape(tensor.shape), tensor)

    torch.Tensor.masked_scatter = scatter_rows  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        torch.Tensor.masked_scatter = scatter  # type: ignore[method-assign]


@contextmanager
def _idle(decoder: torch.nn.Module, answer: Callable[..., Any]) -> Iterator[list[torch.Tensor]]:
    """While this is open, the decoder returns what it is given; the list has it, too."""
    calls: list[torch.Tensor] = []
    own = vars(decoder).get("forward")

    def forward(*_: Any, inputs_embeds: torch.Tensor, **__: Any) -> Any:
        calls.append(inputs_embeds)
        return answer(last_hidden_state=inputs_embeds)

    decoder.forward = forward
    try:
        yield calls
    finally:
        if own is None:
            del decoder.forward
        else:
            decoder.forward = own
