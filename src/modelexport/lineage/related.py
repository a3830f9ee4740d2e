"""What the weights of two files say by themselves: whether the files are related, and which weights are others now.

Whether two module trees are those of one model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from modelexport.errors import some_of
from modelexport.graph.index import FLOATS, Graph, Tensor
from modelexport.record.hierarchy import Hierarchy, Module
from modelexport.record.lineage import Lineage, Relation
from modelexport.record.outline import Sketch, Sketches


@dataclass(frozen=True)
class Weighed:
    """A weight after, by its sketch.

    origins  names of the weights before that it stands for
    alike    those of them that hold the same as far as sketches tell
    """

    name: str
    sketch: Sketch
    origins: tuple[str, ...]
    alike: tuple[str, ...]


class WeightComparison:
    """
    share      of the telling weights after that are weights before by their numbers, or the other way round: the larger
    differing  names of weights before that kept name and shape, and hold something else; and of quantized weights
    """

    def __init__(self, before: Graph, after: Graph, sketches: tuple[Sketches, Sketches], lineage: Lineage) -> None:
        self._before, self._after, self._lineage = before, after, lineage
        self._known = {name: found for name in before.initializers if (found := sketches[0](name)) is not None}
        self._weights = [self._weighed(name, found) for name in after.initializers if (found := sketches[1](name))]

    @property
    def share(self) -> float:
        telling = [one for one in self._weights if one.sketch.is_telling]
        kept = {name for one in telling for name in one.alike}
        whole = sum(sketch.is_telling for sketch in self._known.values())
        same = sum(bool(one.alike) for one in telling)
        return max(same / len(telling) if telling else 0.0, len(kept) / whole if whole else 0.0)

    @property
    def differing(self) -> tuple[str, ...]:
        found = (*self._changed(), *self._quantized())
        return tuple(name for name in dict.fromkeys(found) if name not in self._folded)

    def _weighed(self, name: str, sketch: Sketch) -> Weighed:
        origins = self._lineage.stands_for.get(name, (name,))
        return Weighed(name, sketch, origins, tuple(origin for origin in origins if self._are_alike(sketch, origin)))

    def _are_alike(self, sketch: Sketch, origin: str) -> bool:
        other = self._known.get(origin)
        return other is not None and (sketch.distance(other) < math.inf or bool(sketch.likeness(other)))

    def _changed(self) -> Iterator[str]:
        """Weights that are floats still. What is hardly a weight may be cut off when it is rounded."""
        for one in self._weights:
            was, other = self._before.initializers.get(one.name), self._known.get(one.name)
            if one.sketch.quantized or was is None or other is None:
                continue
            now = self._after.initializers[one.name]
            if _may_hold_the_same(now, was) and (other.is_telling or now.dtype == was.dtype):
                yield from [one.name] if one.sketch.distance(other) == math.inf else []

    def _quantized(self) -> Iterator[str]:
        """Where it is known of which one they were made; else, one may be hard to know again, but not most of them."""
        quantized = [one for one in self._weights if one.sketch.quantized and not self._has_many_scales(one.name)]
        for one in quantized:
            if not one.alike and len(one.origins) == 1 and self._is_telling(one.origins[0]):
                yield one.origins[0]
        # Biases tell little: other versions of a model may have the same.
        sides = {one.sides for one in self._known.values() if one.is_telling and len(one.sides) > 1}
        fresh = [one for one in quantized if one.name not in self._before.initializers]
        made = [one for one in fresh if one.sketch.is_telling and one.sketch.sides in sides]
        if not self._folded and 2 * sum(bool(one.alike) for one in made) < len(made):
            yield from (one.name for one in made if not one.alike)

    def _has_many_scales(self, name: str) -> bool:
        """Whether a quantized weight has a scale or zero point for every channel: its numbers say little without."""
        types = {*FLOATS, self._after.initializers[name].dtype}
        read = {value for node in self._after.consumers.get(name, ()) for value in node.inputs if value != name}
        others = [self._after.initializers[value] for value in read if value in self._after.initializers]
        return any(tensor.dtype in types and math.prod(tensor.shape) > 1 for tensor in others)

    def _is_telling(self, name: str) -> bool:
        return name in self._known and self._known[name].is_telling

    @cached_property
    def _folded(self) -> frozenset[str]:
        """What nodes read that have taken in a node whose weights are gone: these are in them now."""
        found: set[str] = set()
        for node in self._after.nodes:
            link = self._lineage.nodes[node.key]
            sources = (self._before.by_key[key] for key in link.sources if key in self._before.by_key)
            read = [value for source in sources for value in source.inputs if value in self._before.initializers]
            if link.relation is Relation.FUSED and any(value not in self._after.initializers for value in read):
                found.update(node.inputs)
        return frozenset(found)


def _may_hold_the_same(tensor: Tensor, other: Tensor) -> bool:
    """Whether a weight has the shape of another one, and its type or one of fewer digits."""
    same = tensor.dtype == other.dtype or {tensor.dtype, other.dtype} <= FLOATS
    return same and tensor.shape == other.shape


# Of the modules: another version of a model may have some more or fewer.
_SAME_MODEL = 0.5


@dataclass(frozen=True)
class Kinship:
    """
    shared   modules that both have: under one path, of one class, with parameters of the same shapes
    modules  how many there are in the first tree. Those with parameters count, or all where none has any.
    unlike   paths of modules that one of them has and the other has not, or has in another size
    """

    shared: int
    modules: int
    unlike: tuple[str, ...]

    @property
    def related(self) -> bool:
        return self.shared >= _SAME_MODEL * self.modules

    @property
    def notes(self) -> tuple[str, ...]:
        """What to say of those that are related."""
        return (f"modules that are not the same in both: {some_of(self.unlike)}",) if self.unlike else ()

    def __str__(self) -> str:
        named = f" ({self.unlike[0] or 'the model itself'} is not, for one)" if self.unlike else ""
        return f"{self.shared} of {self.modules} modules are the same in both{named}"


def kinship(a: Hierarchy, b: Hierarchy) -> Kinship:
    telling = [module for module in a.modules.values() if module.parameters] or list(a.modules.values())
    shared = [module.path for module in telling if _is_same(module, b.modules.get(module.path))]
    unlike = [module.path for module in telling if module.path not in set(shared)]
    unlike += [path for path, module in b.modules.items() if module.parameters and path not in a.modules]
    return Kinship(len(shared), len(telling), tuple(unlike))


def _is_same(one: Module, other: Module | None) -> bool:
    if other is None or one.class_name != other.class_name:
        return False
    shapes = {tensor.name: tensor.shape for tensor in other.parameters}
    return all(shapes.get(tensor.name) == tensor.shape for tensor in one.parameters)
