"""Whether two module trees are those of one model."""

from __future__ import annotations

from dataclasses import dataclass

from modelexport.record.hierarchy import Hierarchy, Module
from modelexport.record.wording import some_of

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
