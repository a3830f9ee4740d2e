"""Steps of generation: what `generate` really hands to `forward`, call by call.

    record_steps(model, {"input_ids": 2x6, "attention_mask": …}, new_tokens=4)
        call 0   input_ids 2x6, attention_mask 2x6, an empty cache            (prefill)
        call 1   input_ids 2x1, attention_mask 2x7, the cache after call 0    (decode)
        …

Nothing is assumed about which arguments a model takes. Several decode calls are merged into one that handles several
tokens (`merge_calls`), because exporters take an axis of size 1 for a constant.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from modelexport.capture.generation.module_states import MODULE_STATES, StateRecorder, preserve_attributes
from modelexport.errors import InputError

# Hints of `generate` to `forward` that leave out work; a graph does all of it.
_HINTS = frozenset({"logits_to_keep", "num_logits_to_keep"})

WITHOUT_CACHE = "Export it without cache: give an .onnx file as output and no task ending in -with-past."

_PICTURE_RANK = 4  # batch, channels, height, width


@dataclass(frozen=True)
class RecordedCall:
    """One call of `forward`: its arguments as they were before it, and what it returned."""

    arguments: Mapping[str, Any]
    outputs: Any


@contextmanager
def record_calls(
    module: torch.nn.Module, method: str = "forward", at_call: Callable[[], None] = lambda: None
) -> Iterator[list[RecordedCall]]:
    """The calls of a module's method while this is open; positional arguments by their names.

    at_call  is told before each of them
    """
    calls: list[RecordedCall] = []
    own, forward = vars(module).get(method), getattr(module, method)
    signature = inspect.signature(forward)

    def recorded(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        arguments: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            collected = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            arguments |= value if collected else {name: value}
        # Copied first: a cache is changed in place.
        arguments = copy.deepcopy({name: value for name, value in arguments.items() if name not in _HINTS})
        at_call()
        outputs = forward(*args, **kwargs)
        calls.append(RecordedCall(arguments, copy.deepcopy(outputs)))
        return outputs

    recorded.__signature__ = signature  # type: ignore[attr-defined]
    setattr(module, method, recorded)
    try:
        yield calls
    finally:
        if own is None:
            delattr(module, method)
        else:
            setattr(module, method, own)


@dataclass(frozen=True)
class Generation:
    """A run of `generate`: tokens of the prompt and new ones, and the calls of the model."""

    tokens: torch.Tensor
    calls: Sequence[RecordedCall]


def has_encoder(model: torch.nn.Module) -> bool:
    """Whether a decoder reads what an encoder made of the prompt, by the model's configuration."""
    return bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))


def record_steps(model: torch.nn.Module, inputs: Mapping[str, Any], new_tokens: int) -> Generation:
    """Generate greedily, exactly `new_tokens`, and record each call of the model.

    What the model keeps in attributes of its modules from call to call is an argument of theirs, `module_states`.
    """
    generate = getattr(model, "generate", None)
    if not callable(generate):
        raise InputError(
            f"{type(model).__name__} cannot generate: it has no `generate`",
            WITHOUT_CACHE,
        )
    options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False, "num_beams": 1}
    states = StateRecorder(model)
    with preserve_attributes(model), record_calls(model, at_call=states.note) as calls, torch.no_grad():
        try:
            tokens = generate(**copy.deepcopy(dict(inputs)), **options, use_cache=True, return_dict_in_generate=False)
        except Exception as error:
            shapes = ", ".join(
                f"{name}: {tuple(value.shape)}" for name, value in inputs.items() if hasattr(value, "shape")
            )
            raise InputError(
                f"{type(model).__name__}.generate does not run on these inputs: {type(error).__name__}: {error}",
                f"Check the inputs: {shapes}.",
            ) from error
    return Generation(tokens, [_with_states(*pair) for pair in zip(calls, states.list_states(), strict=True)])


def _with_states(call: RecordedCall, states: Mapping[str, torch.Tensor]) -> RecordedCall:
    return replace(call, arguments={**call.arguments, MODULE_STATES: dict(states)}) if states else call


def merge_calls(calls: Sequence[RecordedCall], caches: frozenset[str]) -> dict[str, Any]:
    """Arguments of one call that does the work of several consecutive ones.

    ids 2x1, ids 2x1        ids 2x2          one tensor for each step: joined
    ids 2x3, ids 2x1        ids 2x4          the prompt, and one for each step: joined
    mask 2x7, mask 2x8      mask 2x8         a tensor that grows: the last
    cache, cache            cache            what the calls change: the first
    """
    first = calls[0].arguments
    return {
        name: value
        if name in caches or not isinstance(value, torch.Tensor)
        else _merge_tensors([call.arguments[name] for call in calls])
        for name, value in first.items()
    }


def _merge_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    first, last = tensors[0], tensors[-1]
    # The batch has more than one row, so the first axis of size 1 is that of the step.
    step = next((axis for axis, size in enumerate(last.shape) if size == 1), None)
    if first.shape != last.shape and (step is None or first.shape[step] <= last.shape[step]):
        return last
    return first if step is None else torch.cat(list(tensors), dim=step)


def enlarge_inputs(
    inputs: Mapping[str, torch.Tensor], run: Callable[[Mapping[str, torch.Tensor]], object] | None = None
) -> dict[str, torch.Tensor]:
    """The same inputs twice, and every axis longer that can be: what differs then is an axis of the graph.

    input_ids 2x6           4x9           three more columns of padding on the left, with the mask
    input_features 2x24x16  4x48x16       the frames twice, with their mask, if `run` takes it
    pixel_values 2x3x8x8    4x3x8x8       pictures keep their size
    """
    tokens = inputs.get("input_ids")
    longer = dict(inputs)
    for name, tensor in inputs.items():
        if tokens is not None and not tensor.is_floating_point() and tensor.shape == tokens.shape:
            padding = tensor[:1, :1] if name == "input_ids" else torch.zeros_like(tensor[:1, :1])
            longer[name] = torch.cat([padding.expand(len(tensor), 3), tensor], dim=1)
    if tokens is None and run is not None:
        longer = _repeat_frames(longer, run)
    return {name: torch.cat([tensor, tensor]) for name, tensor in longer.items()}


def _repeat_frames(
    inputs: Mapping[str, torch.Tensor], run: Callable[[Mapping[str, torch.Tensor]], object]
) -> dict[str, torch.Tensor]:
    """Sounds of twice the length: along the axis that can be doubled, in all inputs that have its size."""
    for tensor in inputs.values():
        for axis in range(1, tensor.dim()) if tensor.is_floating_point() and tensor.dim() < _PICTURE_RANK else ():
            size = tensor.shape[axis]
            doubled = {
                name: torch.cat([other, other], dim=other.shape.index(size, 1)) if size in other.shape[1:] else other
                for name, other in inputs.items()
            }
            # Only the model knows: filters of a spectrogram cannot be doubled, and some sounds have one length.
            with suppress(Exception):
                run(doubled)
                return doubled
    return dict(inputs)
