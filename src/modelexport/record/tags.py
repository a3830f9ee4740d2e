"""Tags: how an attribution is written for people, and which modules may appear in one.

A tag is a *view*. The policy decides which modules are kept; a kept module contributes its class name, with a suffix
where the name alone would not say which module is meant. Two kept modules never share a tag, so a tag can be read back.
A module of unknown class contributes its path below the module before it: `/BertModel/encoder/layer.0`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import cached_property

from modelexport.record.hierarchy import ROOT, Hierarchy, Module, lineage_of, parent_path

TORCH_NN_EXCEPTIONS: tuple[str, ...] = (
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "LayerNorm",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "Embedding",
)

# The label of a model whose class nobody knows.
UNKNOWN_ROOT = "model"
# Characters that mean something in a tag, and the escape character itself.
_ESCAPES = str.maketrans({"%": "%25", "/": "%2F", ".": "%2E"})


class TorchNN(StrEnum):
    """How much of torch.nn appears in tags."""

    ALL = "all"
    EXCEPTIONS = "exceptions"
    NONE = "none"


class Scope(StrEnum):
    """Whose classes appear in tags, torch.nn aside."""

    ANY = "any"
    HF = "hf"


@dataclass(frozen=True)
class TagPolicy:
    """Which modules may appear in a tag. `drop` wins over `keep`, and both over the rest; globs match path or class."""

    scope: Scope = Scope.ANY
    torch_nn: TorchNN = TorchNN.EXCEPTIONS
    torch_nn_exceptions: tuple[str, ...] = TORCH_NN_EXCEPTIONS
    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()

    def keeps(self, module: Module) -> bool:
        if matches_any(module, self.drop):
            return False
        if matches_any(module, self.keep):
            return True
        # torch.ao.nn has the quantized twins of torch.nn: https://docs.pytorch.org/docs/stable/quantization.html
        if module.package == "torch.nn" or module.package.startswith(("torch.nn.", "torch.ao.nn.")):
            return self._keeps_torch_nn(module)
        if not module.is_class_known:
            # A list of unknown class is in the paths of what it holds.
            return not module.container
        # Code that transformers imports from a model folder lives in the package `transformers_modules`.
        top = module.package.partition(".")[0]
        return self.scope is Scope.ANY or top in ("transformers", "transformers_modules")

    def _keeps_torch_nn(self, module: Module) -> bool:
        if module.path == ROOT and self.scope is Scope.ANY:
            return True
        if self.torch_nn is TorchNN.ALL:
            return not (module.container and module.class_name in ("ModuleList", "ModuleDict"))
        return self.torch_nn is TorchNN.EXCEPTIONS and module.class_name in self.torch_nn_exceptions


@dataclass(frozen=True)
class Tags:
    hierarchy: Hierarchy
    policy: TagPolicy = TagPolicy()

    @cached_property
    def by_path(self) -> Mapping[str, str]:
        kept = [path for path, module in self.hierarchy.modules.items() if self.policy.keeps(module)]
        return _build_tags(self.hierarchy, kept)

    @cached_property
    def by_tag(self) -> Mapping[str, str]:
        return {tag: path for path, tag in self.by_path.items()}

    def tag(self, path: str) -> str:
        """The tag of the module, or of the nearest module above it that the policy keeps; empty if there is none."""
        # Asked for every node, and of few modules.
        tag = self._tags.get(path)
        if tag is None:
            above = lineage_of(self.hierarchy.canonical.get(path, path))
            kept = [self.by_path[path] for path in above if path in self.by_path]
            tag = self._tags[path] = kept[-1] if kept else ""
        return tag

    @cached_property
    def _tags(self) -> dict[str, str]:
        return {}

    def path(self, tag: str) -> str | None:
        return self.by_tag.get(tag)


def matches_any(module: Module, globs: Iterable[str]) -> bool:
    """Whether one of the patterns is about the module, by its path or its class."""
    return any(fnmatchcase(module.path, glob) or fnmatchcase(module.class_name, glob) for glob in globs)


def _build_tags(hierarchy: Hierarchy, kept: list[str]) -> dict[str, str]:
    kept_set = set(kept)
    siblings: dict[str | None, list[str]] = {}
    for path in kept:
        siblings.setdefault(_kept_parent(path, kept_set), []).append(path)
    tags: dict[str, str] = {}
    # Parents come before their children in `kept`, so that a parent's tag is there when a child needs it.
    for parent, paths in siblings.items():
        labels = _labels(hierarchy, parent, paths)
        prefix = "" if parent is None else tags[parent]
        tags.update({path: f"{prefix}/{labels[path]}" for path in paths})
    return tags


def _kept_parent(path: str, kept: set[str]) -> str | None:
    while path != ROOT:
        path = parent_path(path)
        if path in kept:
            return path
    return None


def _labels(hierarchy: Hierarchy, parent: str | None, paths: list[str]) -> dict[str, str]:
    """Class names; with the shortest tail of the path behind them that makes each one unique among its siblings."""
    by_class: dict[str, list[str]] = {}
    labels: dict[str, str] = {}
    for path in paths:
        if hierarchy.modules[path].is_class_known:
            by_class.setdefault(hierarchy.modules[path].class_name, []).append(path)
        else:
            relative = path.removeprefix(f"{parent}." if parent else "").split(".")
            labels[path] = ".".join(map(_escape, relative)) if path else UNKNOWN_ROOT
    for class_name, same in by_class.items():
        tails = _tails(parent, same)
        for path in same:
            bare = len(same) == 1 and not _in_container(hierarchy, path)
            labels[path] = _escape(class_name) + ("" if bare else tails[path])
    return labels


def _tails(parent: str | None, paths: list[str]) -> dict[str, str]:
    start = len(parent) + 1 if parent else 0
    relative = {path: [f".{_escape(part)}" for part in path[start:].split(".")] for path in paths}
    lengths = range(1, max(map(len, relative.values())) + 1)
    candidates = ({path: "".join(parts[-length:]) for path, parts in relative.items()} for length in lengths)
    # The longest tails are whole paths, and these are unique.
    return next(tails for tails in candidates if len(set(tails.values())) == len(paths))


def _in_container(hierarchy: Hierarchy, path: str) -> bool:
    holder = hierarchy.modules.get(parent_path(path))
    return path != ROOT and holder is not None and holder.container


def _escape(text: str) -> str:
    return text.translate(_ESCAPES)
