"""Families of models that generate, as families.toml states them.

read_families()[0].name       'llama'
find_family("gemma2").cache   ('sliding', 'full')
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from measure.corpus.rows import ManifestInvalid, Settings, complete_settings

MANIFEST = Path(__file__).with_name("families.toml")
KINDS = ("decoder", "encoder-decoder", "vision-language")
# What a layer of a cache holds:
#   full          keys and values of all tokens
#   sliding       keys and values of the last `window` tokens
#   cross         keys and values of the encoder's tokens
#   state         a recurrent state, and the inputs of a convolution
#   convolution   the inputs of a convolution alone
#   state and full   both, in one layer
#   shared        nothing: the layer reads what another one holds
#   attributes    nothing: the model keeps its states as attributes of modules, not in the cache
CACHE_KINDS = ("full", "sliding", "cross", "state", "convolution", "state and full", "shared", "attributes")


@dataclass(frozen=True)
class ImageTokens:
    """How an image stands in a prompt.

    tokens  placeholders that the image's features replace
    framed  whether a token before and one behind say where it starts and ends
    grid    patches of an image in time, height and width, where the model takes them as an input
    marks   the input that tells tokens of the image from others, if the model has one
    values  of this input: for the image, for the rest of the prompt, for text of which every token sees those before
    """

    tokens: int
    framed: bool = False
    grid: tuple[int, ...] = ()
    marks: str = ""
    values: tuple[int, int, int] = (1, 0, 0)


@dataclass(frozen=True)
class Family:
    """One family: a tiny model, and what is known of it.

    floats   shapes of inputs that are made of random numbers
    lengths  how much of each sample of these inputs is not padding, where the model takes a mask of them
    image    how an image stands in the prompt, if the model takes one
    processor, processing   class of transformers that makes these inputs from pixels or sound, and its keywords
    cache    kinds of layers of its cache, of CACHE_KINDS
    window   tokens that a sliding window holds, 0 without one
    pads     whether tokens are the same with padding on the left as without
    one_row  why it is measured with one prompt alone; empty for a batch
    seed     of the weights; another one is chosen where greedy decoding repeats a token
    mixing   spread of square weights, those of attention: too much, and every token gives the same next one
    """

    name: str
    kind: str
    model_class: str
    config_class: str
    config: Settings
    cache: tuple[str, ...]
    floats: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    image: ImageTokens | None = None
    processor: str = ""
    processing: Settings = field(default_factory=dict)
    window: int = 0
    pads: bool = True
    one_row: str = ""
    seed: int = 0
    mixing: float = 0.5

    @property
    def takes_text(self) -> bool:
        """Whether `generate` is given tokens; those of speech are given features alone."""
        return not self.floats or self.image is not None


@cache
def read_families(path: Path = MANIFEST) -> tuple[Family, ...]:
    """All families, in the order of the file."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(_read_family(item, content["sizes"]) for item in content["family"])


def find_family(name: str) -> Family:
    for family in read_families():
        if family.name == name:
            return family
    raise ManifestInvalid(f"no family is called {name!r}")


def _read_family(item: Mapping[str, Any], sizes: Mapping[str, Settings]) -> Family:
    stated = dict(item)
    name = stated.get("name", "a family without a name")
    try:
        family = Family(
            name=stated.pop("name"),
            kind=stated.pop("kind"),
            model_class=stated.pop("class"),
            config_class=stated.pop("config_class"),
            config=complete_settings(stated.pop("config"), sizes),
            cache=tuple(stated.pop("cache")),
            floats={key: tuple(shape) for key, shape in stated.pop("floats", {}).items()},
            lengths=tuple(stated.pop("lengths", ())),
            image=_read_image(stated.pop("image", None)),
            **stated,
        )
    except (KeyError, TypeError) as error:
        raise ManifestInvalid(f"{name}: {error}") from error
    _check_names(family)
    return family


def _read_image(stated: Mapping[str, Any] | None) -> ImageTokens | None:
    if stated is None:
        return None
    grid: Sequence[int] = stated.get("grid", ())
    values: Sequence[int] = stated.get("values", ImageTokens.values)
    return ImageTokens(**{**stated, "grid": tuple(grid), "values": tuple(values)})


def _check_names(family: Family) -> None:
    if family.kind not in KINDS:
        raise ManifestInvalid(f"{family.name}: no such kind: {family.kind!r}")
    if unknown := sorted(set(family.cache) - set(CACHE_KINDS)):
        raise ManifestInvalid(f"{family.name}: no such kind of cache: {unknown[0]!r}")
