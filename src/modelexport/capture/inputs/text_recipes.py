"""Input recipes for text: token ids and what goes with them, and the placeholder tokens of images and sounds.

    input_ids   ordinary tokens of the vocabulary, 2x8; special tokens are left out, because models treat them specially
    bbox        2x8x4, corners in order; position_ids 0 to 7; masks of ones

Placeholder tokens: text in which an image or a sound stands must hold one token for each of its features.

    "Describe <image>"   ->   [tok, <image> x 16, tok, tok, …]      for an image of which the model makes 16 features

How many that are depends on the model's own pooling, cropping and merging, so the model is asked: it computes
the features of the sample once (`get_image_features`), and they are counted.

A new text-like input is one entry in TEXT_RECIPES; a new medium inside of text one entry in MEDIA.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch

from modelexport.capture.inputs.input_recipe import InputRecipe, RandomSource, RecipeContext, Shape, ones, wanted_with
from modelexport.capture.inputs.specs import DECODER_SEQUENCE, SEQUENCE, ConfigFields
from modelexport.capture.loading.third_party import quiet_transformers

# The number of ids that a model knows; a model that hashes characters has buckets in place of a vocabulary.
_VOCABULARY = ("vocab_size", "text_encoder_vocab_size", "num_hash_buckets")
_BOX_CORNERS = 4  # left, top, right, bottom of the word on its page
_FEWEST_CHOICES = 2  # tokens to choose from where a nested configuration names no vocabulary


def tokens_shape(context: RecipeContext) -> Shape:
    return context.tokens_shape or (context.batch, context.size(SEQUENCE))


def has_text(context: RecipeContext) -> bool:
    """A model with a vocabulary reads text, whatever else it reads."""
    return context.fields.number(*_VOCABULARY, within=("text",)) is not None


def token_filler(*within: str) -> Callable[[RecipeContext, Shape, RandomSource], torch.Tensor]:
    """Ordinary tokens of the vocabulary found in the nested configuration that `within` names."""

    def fill(context: RecipeContext, shape: Shape, source: RandomSource) -> torch.Tensor:
        size = context.fields.number(*_VOCABULARY, within=within) or _FEWEST_CHOICES
        ordinary = torch.ones(size, dtype=torch.bool)
        ordinary[[token for token in context.fields.special_tokens() if 0 <= token < size]] = False
        # A vocabulary of special tokens alone is better than no text.
        allowed = torch.nonzero(ordinary).flatten() if ordinary.any() else torch.arange(size)
        return allowed[source.integers(0, len(allowed), shape)]

    return fill


def _sentences(context: RecipeContext, shape: Shape, source: RandomSource) -> torch.Tensor:
    """Encoder-decoder classifiers pool at the end token, so sample text has one, as real text does."""
    tokens = token_filler("text")(context, shape, source)
    end = context.fields.number("eos_token_id", within=("text",))
    size = context.fields.number(*_VOCABULARY, within=("text",)) or 0
    if context.fields.own("is_encoder_decoder") and end is not None and 0 <= end < size:
        tokens[..., -1] = end
    return tokens


def _boxes(context: RecipeContext, shape: Shape, source: RandomSource) -> torch.Tensor:
    """Left, top, right, bottom: the second corner never comes before the first."""
    limit = context.fields.number("max_2d_position_embeddings")
    if limit is None:
        return source.uniform(0.0, 1.0, shape).to(context.floating)
    return source.integers(0, limit, (*shape[:-1], 2, 2)).sort(dim=-2).values.flatten(-2)


def _decodes(context: RecipeContext) -> bool:
    """A model that cannot be continued (no past) shifts its decoder's input out of input_ids by itself."""
    continues = bool(context.fields.own("is_encoder_decoder")) and "past_key_values" in context.accepted
    return continues and context.fields.number(*_VOCABULARY) is not None


def _decoder_tokens(context: RecipeContext) -> Shape:
    return (context.batch, context.size(DECODER_SEQUENCE))


def _tells_types_apart(context: RecipeContext) -> bool:
    """With one type there is nothing to tell apart, unless types say where in the text the media stand."""
    types = context.fields.number("type_vocab_size")
    with_media = any(medium.inputs[0] in context.chosen for medium in MEDIA)
    return "input_ids" in context.chosen and (types > 1 if types else with_media)


TEXT_RECIPES: Mapping[str, InputRecipe] = {
    "input_ids": InputRecipe(
        lambda context: tokens_shape(context) if has_text(context) else None, _sentences, has_text
    ),
    "attention_mask": InputRecipe(tokens_shape, ones, wanted_with("input_ids")),
    "token_type_ids": InputRecipe(
        tokens_shape,
        lambda context, shape, source: source.integers(0, context.fields.number("type_vocab_size") or 1, shape),
        _tells_types_apart,
    ),
    "position_ids": InputRecipe(
        tokens_shape, lambda _context, shape, _source: torch.arange(shape[-1]).expand(shape).clone()
    ),
    "inputs_embeds": InputRecipe(
        lambda context: context.per_sample(
            context.size(SEQUENCE), context.fields.number("hidden_size", within=("text",))
        )
    ),
    "bbox": InputRecipe(lambda context: (*tokens_shape(context), _BOX_CORNERS), _boxes, wanted_with("input_ids")),
    "decoder_input_ids": InputRecipe(_decoder_tokens, token_filler("decoder", "text"), _decodes),
    "decoder_attention_mask": InputRecipe(_decoder_tokens, ones, wanted_with("decoder_input_ids")),
    # 0 is text; write_placeholders marks the media.
    "mm_token_type_ids": InputRecipe(
        tokens_shape,
        lambda _context, shape, _source: torch.zeros(shape, dtype=torch.int64),
        wanted_with("image_grid_thw"),
    ),
    "qformer_input_ids": InputRecipe(tokens_shape, token_filler("qformer")),
    "qformer_attention_mask": InputRecipe(tokens_shape, ones, wanted_with("qformer_input_ids")),
    "task_inputs": InputRecipe(
        lambda context: context.per_sample(context.fields.number("task_seq_len")), token_filler("text")
    ),
}


@dataclass(frozen=True)
class Medium:
    """A kind of medium inside of text.

    name    as transformers spells it: `image_token_id` in a configuration, `get_image_features` of a model
    inputs  the arguments of `forward` that hold it; the first is the one that it cannot do without
    kind    what `mm_token_type_ids` marks its tokens with
    """

    name: str
    inputs: tuple[str, ...]
    kind: int

    def placeholder_id(self, fields: ConfigFields) -> int | None:
        return fields.number(f"{self.name}_token_id", f"{self.name}_token_index")


# Inputs that show where a medium stands in the text.
_KINDS, _MARKS = "mm_token_type_ids", "token_type_ids"
_MARKED = ("input_ids", _KINDS, _MARKS)

MEDIA = (
    Medium("image", ("pixel_values", "image_grid_thw", "image_sizes", "pixel_attention_mask"), 1),
    Medium("audio", ("input_features", "feature_attention_mask", "input_features_mask"), 3),
)


@dataclass(frozen=True)
class Placeholders:
    """`count` tokens with this id in every row of the sample text; `kind` is their mm_token_type_id."""

    token: int
    count: int
    kind: int


MEDIA_INPUTS = frozenset(name for medium in MEDIA for name in medium.inputs)


def absent_media(fields: ConfigFields, tokens: torch.Tensor | None) -> frozenset[str]:
    """Inputs of media that the given text has no placeholder for."""
    if tokens is None:
        return frozenset()
    by_token = ((medium, medium.placeholder_id(fields)) for medium in MEDIA)
    absent = (medium for medium, token in by_token if token is not None and not (tokens == token).any())
    return frozenset(name for medium in absent for name in medium.inputs)


def count_placeholders(
    module: torch.nn.Module, fields: ConfigFields, values: Mapping[str, torch.Tensor], batch: int
) -> tuple[Placeholders | None, ...]:
    """For each medium: its placeholders, or None if it has none or the model cannot be asked."""
    return tuple(_count_features(module, medium, medium.placeholder_id(fields), values, batch) for medium in MEDIA)


def _count_features(
    module: torch.nn.Module, medium: Medium, token: int | None, values: Mapping[str, torch.Tensor], batch: int
) -> Placeholders | None:
    arguments = {name: values[name] for name in medium.inputs if name in values}
    method = getattr(module, f"get_{medium.name}_features", None)
    if token is None or method is None or medium.inputs[0] not in arguments:
        return None
    try:
        with quiet_transformers(), torch.no_grad():
            features = method(**arguments)
    except Exception:  # noqa: BLE001 - a model that cannot be asked is run on text alone, and the caller says so
        return None
    rows = _rows(getattr(features, "pooler_output", features))
    return Placeholders(token, rows // batch, medium.kind) if rows else None


def _rows(features: object) -> int:
    """Feature vectors in a tensor, or in the list of them that models with several image sizes give."""
    if isinstance(features, torch.Tensor):
        return features.numel() // features.shape[-1]
    return sum(_rows(each) for each in features) if isinstance(features, (list, tuple)) else 0


def write_placeholders(
    values: Mapping[str, torch.Tensor], media: Collection[Placeholders]
) -> Mapping[str, torch.Tensor]:
    """Write the placeholders after the first token, one medium after the other, and mark their kind.

    input_ids          [a, b, c, d, e]  ->  [a, <image>, <image>, d, e]
    mm_token_type_ids  [0, 0, 0, 0, 0]  ->  [0, 1, 1, 0, 0]      the kind of the medium
    token_type_ids     [0, 0, 0, 0, 0]  ->  [0, 1, 1, 0, 0]      1 for every medium
    """
    placed, start = {name: values[name].clone() for name in _MARKED if name in values}, 1
    for medium in media:
        marks = {"input_ids": medium.token, _KINDS: medium.kind, _MARKS: 1}
        for name, tensor in placed.items():
            tensor[:, start : start + medium.count] = marks[name]
        start += medium.count
    return {**values, **placed}
