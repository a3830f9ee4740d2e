"""From a module and a request to keyword inputs: what is given or specified, and the rest made to fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from modelexport.capture.inputs.axes import SEQUENCE, axis_names, dynamic_axes
from modelexport.capture.inputs.fields import Fields
from modelexport.capture.inputs.filling import fill_recipe, fill_spec
from modelexport.capture.inputs.media_tokens import (
    MEDIA,
    Placeholders,
    absent_media,
    count_placeholders,
    media_inputs,
    place,
    token_of,
)
from modelexport.capture.inputs.processing import preprocessor_size, process
from modelexport.capture.inputs.recipes import choose_inputs
from modelexport.capture.inputs.request import InputRequest, InputSpec, ModelInputs
from modelexport.capture.inputs.scene import Scene
from modelexport.capture.inputs.signature import ForwardSignature, main_inputs, read_signature
from modelexport.capture.inputs.spec import read_arrays_file, read_specs_file
from modelexport.capture.inputs.vision import size_pair
from modelexport.errors import InputError

_SMALLEST_DYNAMIC = 2


@dataclass(frozen=True)
class _Given:
    """What the user decided: real tensors, and tensors to make to a specification."""

    tensors: Mapping[str, torch.Tensor]
    specs: Mapping[str, InputSpec]
    notes: tuple[str, ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self.tensors) | frozenset(self.specs)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        real = {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}
        return {**real, **{name: spec.shape for name, spec in self.specs.items()}}


def make_inputs(module: torch.nn.Module, source: str | Path | None, request: InputRequest) -> ModelInputs:
    """Inputs that `module` can be run with; `source` is where its tokenizer or processor may be found.

    Nothing is left to chance: values come from `request.seed`, and the global random state is not touched.
    """
    signature = read_signature(module)
    fields = Fields(getattr(module, "config", None))
    given = _gather(fields, signature, source, request)
    left_out = absent_media(fields, given.tensors.get("input_ids"))
    scene = _scene(module, fields, signature, given, request.seed, preprocessor_size(source))
    scene = choose_inputs(scene, signature, main_inputs(module, signature), left_out)
    values, notes = _make_all(module, scene, signature, given)
    device = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    moved = {name: value.to(device) for name, value in values.items()}
    return ModelInputs(moved, dynamic_axes(moved), (*given.notes, *notes))


def _gather(fields: Fields, signature: ForwardSignature, source: str | Path | None, request: InputRequest) -> _Given:
    arrays = {} if request.arrays_file is None else read_arrays_file(request.arrays_file)
    listed = () if request.specs_file is None else read_specs_file(request.specs_file)
    specs = _unique((*request.shapes, *listed), arrays)
    signature.check([*arrays, *specs])
    processed = process(source, request, size_pair(fields.find("image_size", within=("vision",))))
    kept = {name: value for name, value in processed.values.items() if name in signature.names}
    _refuse_useless(processed.values, signature)
    tensors = {name: value for name, value in {**kept, **arrays}.items() if name not in specs}
    widened, notes = (specs, ()) if request.static else _widen(specs, tensors)
    return _Given(tensors, widened, (*processed.notes, *notes))


def _refuse_useless(processed: Mapping[str, torch.Tensor], signature: ForwardSignature) -> None:
    """Models without text may take an attention_mask too, so it is the main result that must be of use."""
    for name, option in (("input_ids", "--text"), ("pixel_values", "--image")):
        if name in processed and name not in signature.names:
            raise InputError(
                f"{option} gives {name!r}, which forward does not take",
                f"It takes: {', '.join(signature.names)}.",
            )


def _unique(specs: Iterable[InputSpec], arrays: Mapping[str, torch.Tensor]) -> Mapping[str, InputSpec]:
    found: dict[str, InputSpec] = {}
    for spec in specs:
        if spec.name in found or spec.name in arrays:
            raise InputError(f"input {spec.name!r} is given twice", "Give each input once.")
        found[spec.name] = spec
    return found


def _widen(
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


def _scene(
    module: torch.nn.Module,
    fields: Fields,
    signature: ForwardSignature,
    given: _Given,
    seed: int,
    image_size: tuple[int, int] | None,
) -> Scene:
    shapes = given.shapes()
    dtypes = (each.dtype for each in module.parameters() if each.dtype.is_floating_point)
    return Scene(
        fields=fields,
        accepted=frozenset(signature.names),
        chosen=given.names,
        sizes=_axis_sizes(shapes),
        floating=next(dtypes, torch.float32),
        seed=seed,
        tokens_shape=shapes.get("input_ids"),
        image_size=image_size,
    )


def _make_all(
    module: torch.nn.Module, scene: Scene, signature: ForwardSignature, given: _Given
) -> tuple[Mapping[str, torch.Tensor], tuple[str, ...]]:
    media = {name: _make(scene, name, given) for name in scene.chosen & media_inputs()}
    placeholders: list[Placeholders] = []
    notes: tuple[str, ...] = ()
    if "input_ids" in scene.chosen and "input_ids" not in given.tensors:
        scene, placeholders, notes = _make_room(module, scene, media)
    made = {
        name: media[name] if name in media else _make(scene, name, given) for name in signature.in_order(scene.chosen)
    }
    return place(made, placeholders), notes


def _make(scene: Scene, name: str, given: _Given) -> torch.Tensor:
    if name in given.tensors:
        return given.tensors[name]
    return fill_spec(scene, given.specs[name]) if name in given.specs else fill_recipe(scene, name)


def _make_room(
    module: torch.nn.Module, scene: Scene, media: Mapping[str, torch.Tensor]
) -> tuple[Scene, list[Placeholders], tuple[str, ...]]:
    """Lengthen the text by its placeholders; a medium that cannot be counted is left out, with a note.

    Text whose shape the user gave is not lengthened: where the placeholders do not fit, no medium is used.
    """
    counted = count_placeholders(module, scene.fields, media, scene.batch)
    room = None if scene.tokens_shape is None else scene.tokens_shape[-1] - 1
    if room is not None and sum(each.count for each in counted if each is not None) > room:
        counted = (None,) * len(counted)
    left_out: set[str] = set()
    for medium, placeholders in zip(MEDIA, counted, strict=True):
        if placeholders is None and token_of(medium, scene.fields) is not None:
            left_out.update(scene.chosen & set(medium.inputs))
    found = [each for each in counted if each is not None]
    longer = 0 if room is not None else sum(each.count for each in found)
    sizes = {**scene.sizes, SEQUENCE: scene.size(SEQUENCE) + longer}
    notes = (f"left out, so the model runs on text alone: {', '.join(sorted(left_out))}",) if left_out else ()
    return replace(scene, chosen=scene.chosen - left_out, sizes=sizes), found, notes
