"""The table from input name to recipe, and which of its entries a model needs.

The order matters: whether a mask is wanted depends on the tokens that it masks having been chosen before.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from modelexport.capture.inputs.audio import AUDIO_RECIPES
from modelexport.capture.inputs.recipe import Recipe
from modelexport.capture.inputs.scene import Scene
from modelexport.capture.inputs.series import SERIES_RECIPES
from modelexport.capture.inputs.signature import ForwardSignature
from modelexport.capture.inputs.text import TEXT_RECIPES
from modelexport.capture.inputs.vision import VISION_RECIPES
from modelexport.errors import InputError

RECIPES: Mapping[str, Recipe] = {**VISION_RECIPES, **TEXT_RECIPES, **AUDIO_RECIPES, **SERIES_RECIPES}

# Two ways to say the same thing: given one, the other is not made.
_INSTEAD_OF = {"input_ids": "inputs_embeds", "decoder_input_ids": "decoder_inputs_embeds"}


def choose_inputs(scene: Scene, signature: ForwardSignature, main: Collection[str], left_out: Collection[str]) -> Scene:
    """The scene with everything chosen that the model needs besides what is given."""
    needed = (signature.required | set(main)) - set(left_out)
    for name, recipe in RECIPES.items():
        if name not in signature.names or name in scene.chosen or name in left_out:
            continue
        if _INSTEAD_OF.get(name) in scene.chosen:
            needed -= {name}
        elif (name in needed or recipe.wanted(scene)) and recipe.shape(scene) is not None:
            scene = replace(scene, chosen=scene.chosen | {name})
    _refuse_unknown(scene, signature, needed)
    return scene


def _refuse_unknown(scene: Scene, signature: ForwardSignature, needed: Collection[str]) -> None:
    # An optional main input that nothing is known of may be another name for one that was chosen.
    really = set(needed) & signature.required if scene.chosen else needed
    unknown = [name for name in signature.in_order(really) if name not in scene.chosen]
    if unknown:
        examples = " ".join(f"--input {name}=SHAPE:DTYPE" for name in unknown)
        raise InputError(
            f"cannot tell the shape of {_listed(unknown)} from its name and the model's configuration",
            f"Say it: {examples} (for example --input {unknown[0]}=2x16:float32).",
        )
    if not scene.chosen and not signature.runs_without_inputs:
        names = ", ".join(signature.names) or "none, only *args or **kwargs"
        raise InputError(
            f"cannot tell which inputs forward needs; it names: {names}",
            "Say them: --input name=SHAPE:DTYPE for each (for example --input x=2x16:float32).",
        )


def _listed(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return f"input {quoted[0]}" if len(quoted) == 1 else f"inputs {', '.join(quoted)}"
