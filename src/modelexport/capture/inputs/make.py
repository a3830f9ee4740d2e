"""Sample inputs of a model: what the user gave or specified first, the rest made from the signature and configuration.

Everything is decided by *input name* and *configuration field*; the type of the model is never asked.

    forward(input_ids, attention_mask=None, labels=None), config vocab_size=1000
    make_inputs(…)   input_ids  int64 2x8, below 1000     attention_mask  int64 2x8 of ones     labels  not made
                     axes       {"input_ids": {0: "batch", 1: "sequence"}, "attention_mask": the same}

Steps: read the signature of `forward` (specs.py); read what the user gave: arrays, specifications, text and images
(processing.py); choose from RECIPES what the model needs besides; make each, with room for placeholder tokens in text.

A new kind of model input is one entry in a table of recipes (text_recipes.py, media_recipes.py), and, if some of its
axes shall be dynamic, a name in `axis_names` (specs.py). The order of the tables matters: whether a mask is wanted
depends on the tokens that it masks having been chosen before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from modelexport.capture.inputs import text_recipes
from modelexport.capture.inputs.input_recipe import InputRecipe, RandomSource, RecipeContext
from modelexport.capture.inputs.media_recipes import (
    AUDIO_RECIPES,
    SERIES_RECIPES,
    VISION_RECIPES,
    list_waveform_convolutions,
    size_pair,
)
from modelexport.capture.inputs.processing import preprocessor_size, process_inputs
from modelexport.capture.inputs.specs import (
    SEQUENCE,
    ConfigFields,
    ForwardSignature,
    InputRequest,
    InputSpec,
    ModelInputs,
    axis_names,
    dynamic_axes,
    main_inputs,
    parse_dtype,
    read_arrays_file,
    read_signature,
    read_specs_file,
)
from modelexport.errors import InputError

RECIPES: Mapping[str, InputRecipe] = {**VISION_RECIPES, **text_recipes.TEXT_RECIPES, **AUDIO_RECIPES, **SERIES_RECIPES}

# Two ways to say the same thing: given one, the other is not made.
_INSTEAD_OF = {"input_ids": "inputs_embeds", "decoder_input_ids": "decoder_inputs_embeds"}


def choose_inputs(
    context: RecipeContext, signature: ForwardSignature, main: Collection[str], left_out: Collection[str]
) -> RecipeContext:
    """The context with everything chosen that the model needs besides what is given.

    main      the inputs that transformers calls the main ones: needed although they may have a default
    left_out  inputs of media that the given text has no placeholders for
    """
    needed = (signature.required | set(main)) - set(left_out)
    for name, recipe in RECIPES.items():
        if name not in signature.names or name in context.chosen or name in left_out:
            continue
        if _INSTEAD_OF.get(name) in context.chosen:
            needed -= {name}
        elif (name in needed or recipe.wanted(context)) and recipe.shape(context) is not None:
            context = replace(context, chosen=context.chosen | {name})
    _refuse_unknown(context, signature, needed)
    return context


def _refuse_unknown(context: RecipeContext, signature: ForwardSignature, needed: Collection[str]) -> None:
    # An optional main input that nothing is known of may be another name for one that was chosen.
    really = set(needed) & signature.required if context.chosen else needed
    unknown = [name for name in signature.in_order(really) if name not in context.chosen]
    if unknown:
        examples = " ".join(f"--input {name}=SHAPE:DTYPE" for name in unknown)
        plural = "s" if len(unknown) > 1 else ""
        raise InputError(
            f"cannot tell the shape of input{plural} {', '.join(map(repr, unknown))} from its name "
            "and the model's configuration",
            f"Say it: {examples} (for example --input {unknown[0]}=2x16:float32).",
        )
    if not context.chosen and not signature.runs_without_inputs:
        names = ", ".join(signature.names) or "none, only *args or **kwargs"
        raise InputError(
            f"cannot tell which inputs forward needs; it names: {names}",
            "Say them: --input name=SHAPE:DTYPE for each (for example --input x=2x16:float32).",
        )


def fill_recipe(context: RecipeContext, name: str) -> torch.Tensor:
    recipe = RECIPES[name]
    shape = recipe.shape(context)
    assert shape is not None, name
    return recipe.fill(context, shape, context.random_source(name))


def fill_spec(context: RecipeContext, spec: InputSpec) -> torch.Tensor:
    """One tensor to the user's specification; InputError for a shape that no memory holds or no recipe can fill."""
    try:
        return _fill_to_spec(context, spec)
    except (RuntimeError, MemoryError) as error:
        # torch has no class of its own for this; on the CPU it is the one thing that can fail here.
        raise InputError(
            f"input {spec.name!r}: a tensor of shape {'x'.join(map(str, spec.shape))} does not fit into memory",
            "Give a smaller shape.",
        ) from error


def _fill_to_spec(context: RecipeContext, spec: InputSpec) -> torch.Tensor:
    """The shape and dtype are the user's; the values are those of the recipe, if the name has one."""
    dtype = None if spec.dtype is None else parse_dtype(spec.dtype, spec.name)
    source = context.random_source(spec.name)
    recipe = RECIPES.get(spec.name)
    if spec.bounds is not None:
        return _fill_range(spec, dtype or _usual_dtype(context, spec), source)
    if recipe is None or context.fields.config is None:
        return _fill_plain(spec.shape, dtype or _usual_dtype(context, spec), source)
    try:
        tensor = recipe.fill(context, spec.shape, source)
    except (RuntimeError, IndexError) as error:
        raise InputError(f"input {spec.name!r} cannot have the shape {spec.shape}: {error}") from error
    if tensor.shape != spec.shape:
        raise InputError(f"input {spec.name!r} cannot have the shape {spec.shape}, only one like {tuple(tensor.shape)}")
    return tensor if dtype is None else tensor.to(dtype)


def _usual_dtype(context: RecipeContext, spec: InputSpec) -> torch.dtype:
    """Names of ids and masks hold integers wherever they occur; anything else is taken for numbers."""
    return torch.int64 if spec.name.endswith(("_ids", "_mask")) else context.floating


def _fill_range(spec: InputSpec, dtype: torch.dtype, source: RandomSource) -> torch.Tensor:
    assert spec.bounds is not None
    low, high = spec.bounds
    if dtype.is_floating_point:
        return source.uniform(low, high, spec.shape).to(dtype)
    return source.integers(int(low), int(high) + 1, spec.shape).to(dtype)


def _fill_plain(shape: tuple[int, ...], dtype: torch.dtype, source: RandomSource) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.ones(shape, dtype=dtype)
    if dtype.is_floating_point or dtype.is_complex:
        return source.normal(shape).to(dtype)
    # 0 and 1: small enough for any embedding table, and still more than one value.
    return source.integers(0, 2, shape).to(dtype)


_SMALLEST_DYNAMIC = 2  # torch.export specializes sizes 0 and 1: https://docs.pytorch.org/docs/stable/export.html


@dataclass(frozen=True)
class _UserInputs:
    """What the user decided: real tensors, and tensors to make to a specification."""

    tensors: Mapping[str, torch.Tensor]
    specs: Mapping[str, InputSpec]
    notes: tuple[str, ...]

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        real = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        return {**real, **{name: spec.shape for name, spec in self.specs.items()}}


def make_inputs(module: torch.nn.Module, source: str | Path | None, request: InputRequest) -> ModelInputs:
    """Inputs to run `module` with, by `request.seed` alone; `source` is where its tokenizer or processor may be."""
    signature = read_signature(module)
    fields = ConfigFields(getattr(module, "config", None))
    decided = _read_user_inputs(fields, signature, source, request)
    shapes = decided.shapes()
    context = RecipeContext(
        fields=fields,
        accepted=frozenset(signature.names),
        chosen=frozenset(shapes),
        sizes=_axis_sizes(shapes),
        floating=next((each.dtype for each in module.parameters() if each.is_floating_point()), torch.float32),
        seed=request.seed,
        tokens_shape=shapes.get("input_ids"),
        image_size=preprocessor_size(source),
        convolutions=list_waveform_convolutions(module),
    )
    left_out = text_recipes.absent_media(fields, decided.tensors.get("input_ids"))
    context = choose_inputs(context, signature, main_inputs(module, signature), left_out)
    values, notes = _make_all(module, context, signature, decided)
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    moved = {name: value.to(device) for name, value in values.items()}
    return ModelInputs(moved, dynamic_axes(moved), (*decided.notes, *notes))


def _read_user_inputs(
    fields: ConfigFields, signature: ForwardSignature, source: str | Path | None, request: InputRequest
) -> _UserInputs:
    arrays = {} if request.arrays_file is None else read_arrays_file(request.arrays_file)
    listed = () if request.specs_file is None else read_specs_file(request.specs_file)
    specs = _unique((*request.shapes, *listed), arrays)
    signature.check([*arrays, *specs])
    processed = process_inputs(source, request, size_pair(fields.find("image_size", within=("vision",))))
    kept = {name: value for name, value in processed.values.items() if name in signature.names}
    _refuse_useless(processed.values, signature)
    tensors = {name: value for name, value in {**kept, **arrays}.items() if name not in specs}
    if request.floating is not None:
        tensors = {
            name: value.to(request.floating) if value.is_floating_point() else value for name, value in tensors.items()
        }
    widened, notes = (specs, ()) if request.static else _widen_axes(specs, tensors)
    return _UserInputs(tensors, widened, (*processed.notes, *notes))


def _refuse_useless(processed: Mapping[str, torch.Tensor], signature: ForwardSignature) -> None:
    """Models without text may take an attention_mask too, so it is the main result that must be of use."""
    for name, option in (("input_ids", "--text"), ("pixel_values", "--image")):
        if name in processed and name not in signature.names:
            raise InputError(
                f"{option} gives {name!r}, which forward does not take", f"It takes: {', '.join(signature.names)}."
            )


def _unique(specs: Iterable[InputSpec], arrays: Mapping[str, torch.Tensor]) -> Mapping[str, InputSpec]:
    by_name: dict[str, InputSpec] = {}
    for spec in specs:
        if spec.name in by_name or spec.name in arrays:
            raise InputError(f"input {spec.name!r} is given twice", "Give each input once.")
        by_name[spec.name] = spec
    return by_name


def _widen_axes(
    specs: Mapping[str, InputSpec], tensors: Mapping[str, torch.Tensor]
) -> tuple[Mapping[str, InputSpec], tuple[str, ...]]:
    """Torch fixes an axis that it sees with size 1, so a made input has 2 there, unless real data says 1."""
    real = _axis_sizes({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    widened, notes = dict(specs), []
    for name, spec in specs.items():
        shape = list(spec.shape)
        for axis, label in axis_names(name, len(shape)).items():
            if shape[axis] < _SMALLEST_DYNAMIC and label not in real:
                shape[axis] = _SMALLEST_DYNAMIC
                notes.append(
                    f"input {name!r}: axis {axis} ({label}) is sampled with size 2, because torch takes "
                    "an axis of size 1 for one that never grows; a static export keeps 1"
                )
        widened[name] = replace(spec, shape=tuple(shape))
    return widened, tuple(notes)


def _axis_sizes(shapes: Mapping[str, tuple[int, ...]]) -> Mapping[str, int]:
    sizes: dict[str, int] = {}
    for name, shape in shapes.items():
        for axis, label in axis_names(name, len(shape)).items():
            sizes.setdefault(label, shape[axis])
    return sizes


def _make_all(
    module: torch.nn.Module, context: RecipeContext, signature: ForwardSignature, given: _UserInputs
) -> tuple[Mapping[str, torch.Tensor], tuple[str, ...]]:
    media = {name: _make_input(context, name, given) for name in context.chosen & text_recipes.MEDIA_INPUTS}
    placeholders: list[text_recipes.Placeholders] = []
    notes: tuple[str, ...] = ()
    if "input_ids" in context.chosen and "input_ids" not in given.tensors:
        context, placeholders, notes = _add_placeholders(module, context, media)
    names = signature.in_order(context.chosen)
    values = {name: media[name] if name in media else _make_input(context, name, given) for name in names}
    return text_recipes.write_placeholders(values, placeholders), notes


def _make_input(context: RecipeContext, name: str, given: _UserInputs) -> torch.Tensor:
    if name in given.tensors:
        return given.tensors[name]
    return fill_spec(context, given.specs[name]) if name in given.specs else fill_recipe(context, name)


def _add_placeholders(
    module: torch.nn.Module, context: RecipeContext, media: Mapping[str, torch.Tensor]
) -> tuple[RecipeContext, list[text_recipes.Placeholders], tuple[str, ...]]:
    """Lengthen the text by its placeholders; a medium that cannot be counted is left out, with a note.

    Text whose shape the user gave is not lengthened: where the placeholders do not fit, no medium is used.
    """
    counted = text_recipes.count_placeholders(module, context.fields, media, context.batch)
    room = None if context.tokens_shape is None else context.tokens_shape[-1] - 1
    if room is not None and sum(each.count for each in counted if each is not None) > room:
        counted = (None,) * len(counted)
    left_out: set[str] = set()
    for medium, placeholders in zip(text_recipes.MEDIA, counted, strict=True):
        if placeholders is None and medium.placeholder_id(context.fields) is not None:
            left_out.update(context.chosen & set(medium.inputs))
    used = [each for each in counted if each is not None]
    longer = 0 if room is not None else sum(each.count for each in used)
    sizes = {**context.sizes, SEQUENCE: context.size(SEQUENCE) + longer}
    notes = (f"left out, so the model runs on text alone: {', '.join(sorted(left_out))}",) if left_out else ()
    return replace(context, chosen=context.chosen - left_out, sizes=sizes), used, notes
