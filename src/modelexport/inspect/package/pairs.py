"""Two packages side by side: components of the same name are compared, and what joins them.

encoder   identical
decoder   3 modules differ
decoder_with_past   only in the second
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from modelexport.errors import some_of
from modelexport.record.package import ComponentInfo, PackageInfo


class HasVerdict(Protocol):
    """A comparison of two files."""

    @property
    def identical(self) -> bool: ...


Pair = TypeVar("Pair", bound=HasVerdict)


@dataclass(frozen=True)
class PackagePair(Generic[Pair]):
    """
    components  how the files of one name compare, by the name of the component
    only_left   components of the first package alone
    joints      what differs in how the files are put together, in words
    """

    left: str
    right: str
    components: Mapping[str, Pair]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    joints: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        apart = self.only_left or self.only_right or self.joints
        return not apart and all(pair.identical for pair in self.components.values())


def find_joint_differences(left: PackageInfo, right: PackageInfo) -> Iterator[str]:
    """Target, task, links, cache pairs and modules that are in no file. Where the model came from is no difference."""
    for what in ("target", "task"):
        if getattr(left, what) != getattr(right, what):
            yield f"{what}: {getattr(left, what) or 'none'} → {getattr(right, what) or 'none'}"
    yield from find_other_connections(left, right)
    yield from _lines(
        "module in no file", (module.path for module in left.absent), (module.path for module in right.absent)
    )


def find_other_connections(left: PackageInfo, right: PackageInfo) -> Iterator[str]:
    """Links and cache pairs that only one of two packages has: with the same files, it generates something else."""
    yield from _lines("link", map(str, left.links), map(str, right.links))
    others = {component.name: component for component in right.components}
    for component in left.components:
        if component.name in others:
            pairs = map(_pair_texts, (component, others[component.name]))
            yield from _lines(f"cache of {component.name}", *pairs)


def _pair_texts(component: ComponentInfo) -> Iterator[str]:
    for pair in component.cache:
        begun = f", {pair.first:g} before the first token" if pair.first else ""
        yield f"{pair.present} → {pair.past}{begun}"


def _lines(what: str, left: Iterator[str], right: Iterator[str]) -> Iterator[str]:
    before, after = dict.fromkeys(left), dict.fromkeys(right)
    removed = [text for text in before if text not in after]
    added = [text for text in after if text not in before]
    if removed:
        yield f"{what}, removed: {some_of(removed)}"
    if added:
        yield f"{what}, added: {some_of(added)}"
