"""Captures: steps of several tokens out of runs of `generate`, their tensors under names, and what they must give.

    capture_steps(model, inputs, first=3, steps=2)      calls 3 and 4, merged into one call of two tokens
    sample_tensors(capture.merged, layouts)             {"input_ids": 2x2, "past_key_values.0.key": 2x2x8x8, …}
    name_axes(sample, enlarged, names)                  {"input_ids": {0: "batch", 1: "sequence"}, …}
    find_disagreement(results, call, following, layouts)    what a function gave and the model in `generate` did not

Axes are found by capturing twice, at other sizes: what differs is an axis.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from modelexport.capture.arguments import to_stored_array
from modelexport.capture.generation.cache import TensorLayout, cache_tensors, lay_out_cache, lay_out_constant, read_path
from modelexport.capture.generation.decoder_step import LOGITS, PastLength
from modelexport.capture.generation.module_states import MODULE_STATES, observe_first_states
from modelexport.capture.generation.steps import Generation, RecordedCall, merge_calls, record_steps
from modelexport.errors import InputError
from modelexport.graph.difference import adapt_tolerance, measure
from modelexport.graph.sample import sample as take_sample
from modelexport.record.package import Axis
from modelexport.record.results.verification import Tolerance

BATCH, SEQUENCE, PAST, TOTAL, WINDOW = Axis.BATCH, Axis.SEQUENCE, Axis.PAST, Axis.TOTAL, Axis.WINDOW
PAST_ENCODER = "past_encoder_sequence"  # of keys that a merged decoder makes in its first call, and is handed later

# Ten times what `verify` allows: several tokens at once are added up in another order than one by one, in every layer.
_ATOL, _RTOL = 1e-4, 1e-3
# Names of axes by their sizes in two captures.
AxisNames = dict[tuple[int, ...], str]

# What code raises that is given sizes it is not made for: by torch, or by the model itself.
_REFUSALS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class Capture:
    """A step of several tokens out of a run of `generate`.

    first    number of the first call that was merged
    merged   arguments of the merged call
    """

    run: Generation
    first: int
    steps: int
    caches: frozenset[str]

    @property
    def merged(self) -> dict[str, Any]:
        return merge_calls(self.run.calls[self.first : self.first + self.steps], self.caches)

    @property
    def last(self) -> RecordedCall:
        return self.run.calls[self.first + self.steps - 1]

    @property
    def following(self) -> Mapping[str, Any]:
        """Arguments of the call after the merged ones: the cache as they left it."""
        return self.run.calls[self.first + self.steps].arguments

    @property
    def past_length(self) -> int:
        """Tokens before the merged call: those of the prefill, and one for each decode step."""
        return query_length(self.run.calls[0], self.run.calls[1]) + self.first - 1 if self.first else 0

    @property
    def query_length(self) -> int:
        """Tokens of the merged call: one for each decode step, those of the prompt for the prefill."""
        prompt = 0 if self.first else query_length(self.run.calls[0], self.run.calls[1]) - 1
        return prompt + self.steps

    @property
    def constants(self) -> dict[str, Any]:
        """Arguments that are no tensors and hold none."""
        return {
            name: value
            for name, value in self.merged.items()
            if value is not None and name not in self.caches and not cache_tensors(value)
        }


# How a run of `generate` is recorded: model, inputs, new tokens.
Recorder = Callable[[torch.nn.Module, Mapping[str, Any], int], Generation]


def capture_steps(
    model: torch.nn.Module,
    inputs: Mapping[str, torch.Tensor],
    first: int,
    steps: int,
    record: Recorder = record_steps,
) -> Capture:
    run = record(model, inputs, first + steps + 1)
    return Capture(run, first, steps, cache_arguments(run.calls))


def query_length(prefill: RecordedCall, decode: RecordedCall) -> int:
    """The length of the prompt: the size, in the first call, of the axis that has size 1 in later ones."""
    for name, value in decode.arguments.items():
        before = prefill.arguments.get(name)
        if isinstance(value, torch.Tensor) and isinstance(before, torch.Tensor) and value.dim() == before.dim() >= 2:
            for axis, size in enumerate(value.shape):
                if axis and size == 1:
                    return int(before.shape[axis])
    raise InputError(
        "`generate` feeds no tokens one by one", "Give the inputs of generate: input_ids and what it needs."
    )


def cache_arguments(calls: Sequence[RecordedCall]) -> frozenset[str]:
    """Arguments that hold tensors of their own and come back changed: from the outputs, or changed in place."""
    later, returned = calls[1].arguments, calls[0].outputs
    names = set()
    for name, value in later.items():
        if isinstance(value, torch.Tensor) or not cache_tensors(value):
            continue
        output = returned.get(name) if isinstance(returned, Mapping) else None
        if output is not None or name == MODULE_STATES or type(value).__name__.endswith("Cache"):
            names.add(name)
    return frozenset(names)


def lay_out_arguments(capture: Capture) -> Iterator[TensorLayout]:
    calls, length = capture.run.calls, capture.past_length
    before, later = (calls[capture.first + step].arguments for step in (0, 1))
    for name, value in before.items():
        if name in capture.caches:
            fresh = calls[0].arguments.get(name)
            if name == MODULE_STATES:
                # What is made in the first step and stays is a constant of the modules.
                fresh = {path: tensor for path, tensor in value.items() if are_equal(tensor, later[name].get(path))}
            layout = lay_out_cache(name, (value, later[name]), (length, length + 1), fresh)
            if layout.paths or name != MODULE_STATES:
                yield layout
        elif not isinstance(value, torch.Tensor) and cache_tensors(value):
            yield lay_out_constant(name, value)


def sample_tensors(arguments: Mapping[str, Any], layouts: Sequence[TensorLayout]) -> dict[str, torch.Tensor]:
    plain = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    return {**plain, **{name: tensor for layout in layouts for name, tensor in layout.sample.items()}}


def sample_like(capture: Capture, layouts: Sequence[TensorLayout]) -> dict[str, torch.Tensor]:
    """The tensors of another capture, under the same names."""
    arguments = capture.merged
    return sample_tensors(arguments, [replace(layout, template=arguments[layout.argument]) for layout in layouts])


def name_sizes(small: Capture, large: Capture) -> AxisNames:
    """What is known by its sizes in two captures."""
    batch = tuple(len(capture.run.tokens) for capture in (small, large))
    past, query = (small.past_length, large.past_length), (small.query_length, large.query_length)
    # Without a past, all tokens are new ones: the last name of equal sizes counts.
    return {batch: BATCH, past: PAST, (past[0] + query[0], past[1] + query[1]): TOTAL, query: SEQUENCE}


def name_axes(
    sample: Mapping[str, torch.Tensor], enlarged: Mapping[str, torch.Tensor], names: AxisNames
) -> dict[str, dict[int, str]]:
    """Axes whose size differs between two captures, by what else has these sizes; `names` learns of others."""
    axes: dict[str, dict[int, str]] = {}
    for name, tensor in sample.items():
        pairs = enumerate(zip(tensor.shape, enlarged[name].shape, strict=True))
        differing = {axis: pair for axis, pair in pairs if pair[0] != pair[1]}
        axes[name] = {axis: names.setdefault(pair, f"{name}_{axis}") for axis, pair in differing.items()}
    return axes


def name_first_axis(sample: Mapping[str, torch.Tensor], enlarged: Mapping[str, torch.Tensor]) -> AxisNames:
    """`batch` for the sizes of the first axis, where it has the same ones in all inputs; nothing where it has others.

    sample [4, 4, 8, 16] and [6, 4, 16, 24]      {(4, 6): "batch"}
    pixel_values [64, 48], image_grid_thw [1, 3], and [128, 48], [2, 3]      {}: patches and images
    """
    pairs = {(tensor.shape[0], enlarged[name].shape[0]) for name, tensor in sample.items() if tensor.ndim}
    differing = {pair for pair in pairs if pair[0] != pair[1]}
    return dict.fromkeys(differing, BATCH) if len(differing) == 1 else {}


def name_windows(axes: dict[str, dict[int, str]], layouts: Sequence[TensorLayout]) -> None:
    """The axis that a layer with a window forgets along: its size is that of the past only until the window is full.

    Keys and values are [batch, heads, tokens, size] in every cache of transformers.
    """
    for layout in layouts:
        for name, path in layout.paths.items():
            known = layout.past + name in axes
            if known and getattr(read_path(layout.template, path[:-1]), "is_sliding", False):
                axes[layout.past + name][2] = WINDOW


def find_past_length(axes: Mapping[str, Mapping[int, str]]) -> PastLength | None:
    by_name = {axis_name: (name, axis) for name, named in axes.items() for axis, axis_name in named.items()}
    if PAST in by_name:
        return PastLength(by_name[PAST])
    return PastLength(by_name[TOTAL], by_name[SEQUENCE]) if TOTAL in by_name and SEQUENCE in by_name else None


def find_written(step: Callable[..., Mapping[str, torch.Tensor]], sample: Mapping[str, torch.Tensor]) -> frozenset[str]:
    """Inputs that a function writes into."""
    copies = {name: tensor.clone() for name, tensor in sample.items()}
    versions = {name: tensor._version for name, tensor in copies.items()}
    step(**copies)
    return frozenset(name for name, tensor in copies.items() if tensor._version != versions[name])


def find_first_states(
    model: torch.nn.Module, capture: Capture, layout: TensorLayout, axes: Mapping[str, Mapping[int, str]]
) -> TensorLayout:
    """The layout with what its states hold before the first token, where that is not zeros.

    It is in the cache that the first call was given, or seen when the model makes one: one number for all elements of a
    state. Whether it is right is known when a prompt is fed from it.
    """
    if layout.present is None:
        return layout
    grows = {name for name in layout.paths if {PAST, WINDOW} & set(axes[layout.past + name].values())}
    paths = {name: path for name, path in layout.paths.items() if name not in grows}
    first = capture.run.calls[0].arguments
    if layout.argument in first or layout.argument == MODULE_STATES:
        given = cache_tensors(first.get(layout.argument))
        tensors = {name: given[path] for name, path in paths.items() if path in given}
    else:
        shapes = {name: read_path(layout.template, path).shape for name, path in paths.items()}
        arguments = {name: value for name, value in first.items() if name != MODULE_STATES}
        tensors = observe_first_states(model, lambda: model(**copy.deepcopy(arguments)), paths, shapes) if paths else {}
    filled = {name: tensor.flatten()[0] for name, tensor in tensors.items() if tensor.numel()}
    firsts = {name: float(number) for name, number in filled.items() if bool((tensors[name] == number).all())}
    return replace(layout, firsts={name: number for name, number in firsts.items() if math.isfinite(number) and number})


def empty_state(
    tensor: torch.Tensor, axes: Mapping[int, str], first: float = 0.0, batch: int | None = None
) -> torch.Tensor:
    """The state before the first token: nothing along an axis of the past, `first` everywhere where there is none.

    batch  rows, if not as many as `tensor` has
    """
    sizes: dict[str | None, int] = dict.fromkeys((PAST, WINDOW, PAST_ENCODER), 0)
    if batch is not None:
        sizes[BATCH] = batch
    return tensor.new_full([sizes.get(axes.get(axis), size) for axis, size in enumerate(tensor.shape)], first)


def find_disagreement(
    results: Mapping[str, torch.Tensor],
    call: RecordedCall,
    following: Mapping[str, Any],
    layouts: Sequence[TensorLayout],
) -> str:
    """What of `results` is not what the model gave in `call`: the last logits, or the cache that the next call got.

    "present.0.conv_states differs by 0.31"; empty where nothing is.
    """
    states = [layout for layout in layouts if layout.present is not None]
    expected = {name: tensor for layout in states for name, tensor in layout.read(following[layout.argument]).items()}
    pairs = {name: (results[name], want) for name, want in expected.items() if name in results}
    pairs[LOGITS] = results[LOGITS][:, -1], call.outputs[LOGITS][:, -1]
    return next((_tell_difference(name, *pair) for name, pair in pairs.items() if not are_close(*pair)), "")


def explain_refusal(check: Callable[[], str]) -> str:
    """What a check says, or what a model says that is called in a way that it is not made for."""
    try:
        return check()
    except _REFUSALS as error:
        lines = str(error).strip().splitlines()
        return f"it raises {type(error).__name__}{f': {lines[0]}' if lines else ''}"


def _tell_difference(name: str, tensor: torch.Tensor, expected: torch.Tensor) -> str:
    if tensor.shape != expected.shape:
        return f"{name} is {'x'.join(map(str, tensor.shape))}, not {'x'.join(map(str, expected.shape))}"
    return f"{name} differs by {(tensor - expected).abs().max():.2g}"


def are_equal(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    return other is not None and tensor.shape == other.shape and torch.equal(tensor, other)


def are_close(tensor: torch.Tensor, expected: torch.Tensor) -> bool:
    """Whether two ways of calling the model give the same, as far as their type can tell."""
    if tensor.shape != expected.shape:
        return False
    got, wanted = to_stored_array(tensor), to_stored_array(expected)
    tolerance = adapt_tolerance(Tolerance(_ATOL), take_sample(got), take_sample(wanted))
    return measure(wanted, got, tolerance if tolerance.of_type else Tolerance(_ATOL, _RTOL)).agrees
