"""Traced weights: tensors that know where they come from, in the place of numbers.

    TracedWeight("fc.weight", BF16 8x4).to(float32).T    shape 4x8, recipe transpose(cast(fc.weight))

A library that loads a checkpoint renames, casts, cuts and joins its tensors. Given traced ones, it does the same
without a number in memory, and every parameter says which steps made it (record/weight_recipe.py).

Then parameters become fake tensors, which torch's own exporter traces with: they have type, shape and device, and no
content. What nobody computes with but torch itself, buffers that are no part of a checkpoint, keeps its numbers, and so
does every small weight: constants are folded by their content.

https://docs.pytorch.org/docs/stable/torch.compiler_fake_tensor.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

from modelexport.errors import ModelUnloadable
from modelexport.graph.file.checkpoint import Checkpoint
from modelexport.graph.file.filling import FilledWeight
from modelexport.record.weight_recipe import Operation, Recipe, StoredTensor

# The names that safetensors has for torch's types.
TYPES: Mapping[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
}
_NAMES = {dtype: name for name, dtype in TYPES.items()}
# Elements. Torch's optimizer folds constants up to this size by their content, and larger ones by name and shape alone.
READ_BELOW = 8192
_RECIPE = "_modelexport_recipe"


def stored_name(dtype: torch.dtype) -> str:
    if dtype not in _NAMES:
        raise ModelUnloadable(f"a weight is of type {dtype}, which a checkpoint cannot hold", "Try another --dtype.")
    return _NAMES[dtype]


class TracedWeight(torch.Tensor):
    """A tensor without content: what is done with it becomes a part of its recipe."""

    recipe: Recipe
    shadow: torch.Tensor

    @staticmethod
    def __new__(cls: type[Self], recipe: Recipe, shadow: torch.Tensor) -> Self:
        traced: Self = torch.Tensor._make_wrapper_subclass(
            cls, shadow.shape, strides=shadow.stride(), dtype=shadow.dtype, device=torch.device("cpu")
        )
        traced.recipe, traced.shadow = recipe, shadow
        return traced

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        keywords = dict(kwargs or {})
        record = _RECORDERS.get(function)
        if record is None:
            raise ModelUnloadable(
                f"a weight is loaded by way of {function}, which is not known without weights",
                "Export the model with its weights: leave --no-weights out.",
            )
        shadows = pytree.tree_map_only(TracedWeight, lambda traced: traced.shadow, args)
        result = function(*shadows, **{**keywords, **({"device": "meta"} if keywords.get("device") else {})})
        if isinstance(result, torch.Tensor):
            return TracedWeight(record(args, keywords, result), result)
        return type(result)(TracedWeight(record(args, keywords, part), part) for part in result)


def trace_stored(tensor: StoredTensor) -> TracedWeight:
    if tensor.dtype not in TYPES:
        raise ModelUnloadable(
            f"{tensor.name!r} is of type {tensor.dtype}, which is not known without weights",
            "Export the model with its weights: leave --no-weights out.",
        )
    return TracedWeight(tensor, torch.empty(tensor.shape, dtype=TYPES[tensor.dtype], device="meta"))


_Recorder = Callable[[tuple[Any, ...], Mapping[str, Any], torch.Tensor], Recipe]


def _keep(args: tuple[Any, ...], _keywords: Mapping[str, Any], _result: torch.Tensor) -> Recipe:
    recipe: Recipe = args[0].recipe
    return recipe


def _cast(args: tuple[Any, ...], _keywords: Mapping[str, Any], result: torch.Tensor) -> Recipe:
    if result.dtype is args[0].dtype:
        return _keep(args, {}, result)
    return Operation("cast", (args[0].recipe,), dtype=stored_name(result.dtype))


def _reshape(args: tuple[Any, ...], _keywords: Mapping[str, Any], result: torch.Tensor) -> Recipe:
    if result.shape == args[0].shape:
        return _keep(args, {}, result)
    return Operation("reshape", (args[0].recipe,), tuple(result.shape))


def _transpose(args: tuple[Any, ...], _keywords: Mapping[str, Any], _result: torch.Tensor) -> Recipe:
    axes = list(range(args[0].dim()))
    first, second = (args[1], args[2]) if len(args) > 1 else (0, -1)
    if axes:
        axes[first], axes[second] = axes[second], axes[first]
    return Operation("transpose", (args[0].recipe,), tuple(axes))


def _permute(args: tuple[Any, ...], _keywords: Mapping[str, Any], _result: torch.Tensor) -> Recipe:
    return Operation("transpose", (args[0].recipe,), tuple(axis % args[0].dim() for axis in args[1]))


def _cut(args: tuple[Any, ...], _keywords: Mapping[str, Any], result: torch.Tensor) -> Recipe:
    """A part of a tensor, by where it begins in it and what it steps over."""
    whole = args[0].shadow
    if result.shape == whole.shape:
        return _keep(args, {}, result)
    return _cut_view(args[0].recipe, whole, result)


def _cut_view(recipe: Recipe, whole: torch.Tensor, part: torch.Tensor) -> Recipe:
    offset, numbers = int(part.storage_offset() - whole.storage_offset()), []
    order = sorted(range(whole.dim()), key=whole.stride, reverse=True)
    starts = dict.fromkeys(range(whole.dim()), 0)
    for axis in order:
        if whole.stride(axis) and whole.shape[axis] > 1:
            starts[axis], offset = divmod(offset, int(whole.stride(axis)))
    for axis in range(whole.dim()):
        step = part.stride(axis) // whole.stride(axis) if part.shape[axis] > 1 and whole.stride(axis) else 1
        stop = starts[axis] + (part.shape[axis] - 1) * step + 1 if part.shape[axis] else starts[axis]
        numbers += [starts[axis], stop, step]
    return Operation("slice", (recipe,), tuple(numbers))


def _select(args: tuple[Any, ...], _keywords: Mapping[str, Any], result: torch.Tensor) -> Recipe:
    whole, axis, index = args[0], args[1] % args[0].dim(), args[2] % args[0].shape[args[1]]
    numbers: list[int] = []
    for number, size in enumerate(whole.shape):
        numbers += [index, index + 1, 1] if number == axis else [0, size, 1]
    cut = Operation("slice", (whole.recipe,), tuple(numbers))
    return Operation("reshape", (cut,), tuple(result.shape))


def _concatenate(args: tuple[Any, ...], keywords: Mapping[str, Any], result: torch.Tensor) -> Recipe:
    axis = args[1] if len(args) > 1 else keywords.get("dim", 0)
    return Operation("concatenate", tuple(_recipe_of(part) for part in args[0]), (axis % result.dim(),))


def _stack(args: tuple[Any, ...], keywords: Mapping[str, Any], result: torch.Tensor) -> Recipe:
    axis = (args[1] if len(args) > 1 else keywords.get("dim", 0)) % result.dim()
    shape = (*result.shape[:axis], 1, *result.shape[axis + 1 :])
    parts = tuple(Operation("reshape", (_recipe_of(part),), shape) for part in args[0])
    return Operation("concatenate", parts, (axis,))


def _recipe_of(part: torch.Tensor) -> Recipe:
    if not isinstance(part, TracedWeight):
        raise ModelUnloadable("a weight is joined from numbers that are in no checkpoint", "Leave --no-weights out.")
    return part.recipe


_ATEN = torch.ops.aten
_RECORDERS: Mapping[Any, _Recorder] = {
    **dict.fromkeys([_ATEN.detach.default, _ATEN.alias.default, _ATEN.clone.default, _ATEN.lift_fresh.default], _keep),
    _ATEN._to_copy.default: _cast,
    **dict.fromkeys([_ATEN.view.default, _ATEN._unsafe_view.default, _ATEN.unsqueeze.default], _reshape),
    **dict.fromkeys([_ATEN.squeeze.default, _ATEN.squeeze.dim, _ATEN.squeeze.dims], _reshape),
    **dict.fromkeys([_ATEN.transpose.int, _ATEN.t.default], _transpose),
    _ATEN.permute.default: _permute,
    **dict.fromkeys(
        [_ATEN.slice.Tensor, _ATEN.split.Tensor, _ATEN.split_with_sizes.default, _ATEN.narrow.default], _cut
    ),
    _ATEN.select.int: _select,
    _ATEN.cat.default: _concatenate,
    _ATEN.stack.default: _stack,
}


def forget_numbers(module: torch.nn.Module, checkpoint: Checkpoint | None) -> None:
    """Traced weights of a loaded module become fake ones; small ones are read where there is a checkpoint."""
    # Sizes are symbols only where an export asks for it.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    replaced: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if isinstance(tensor, TracedWeight):
                    # A weight that has two names stays one.
                    replaced.setdefault(id(tensor), _without_numbers(tensor, mode, checkpoint))
                    tensors[name] = replaced[id(tensor)]  # type: ignore[assignment]


def _without_numbers(traced: TracedWeight, mode: FakeTensorMode, checkpoint: Checkpoint | None) -> torch.Tensor:
    if checkpoint is not None and traced.numel() <= READ_BELOW:
        content = bytearray(FilledWeight(traced.recipe, checkpoint).raw())
        plain = torch.frombuffer(content, dtype=traced.dtype) if content else torch.empty(0, dtype=traced.dtype)
        tensor = plain.reshape(traced.shape)
    else:
        with mode:
            tensor = torch.empty(traced.shape, dtype=traced.dtype)
    if isinstance(traced, torch.nn.Parameter):
        tensor = torch.nn.Parameter(tensor, requires_grad=False)
    setattr(tensor, _RECIPE, traced.recipe)
    return tensor


def fake_mode_of(module: torch.nn.Module) -> FakeTensorMode | None:
    """The mode of a module's fake tensors; None for one with numbers."""
    fakes = (tensor for tensor in (*module.parameters(), *module.buffers()) if isinstance(tensor, FakeTensor))
    return next((fake.fake_mode for fake in fakes), None)


def weight_recipes(module: torch.nn.Module) -> dict[str, Recipe]:
    """The recipes of a module's weights, under every name that they have."""
    named = (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name: getattr(tensor, _RECIPE) for pairs in named for name, tensor in pairs if hasattr(tensor, _RECIPE)}


def is_fake(tensor: object) -> bool:
    return isinstance(tensor, FakeTensor)
