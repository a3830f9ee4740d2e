"""Provenance of a package: the module tree of the whole model, and which components have nodes of a module.

    encoder_model.onnx   encoder.layers.0.fc1, …
    decoder_model.onnx   decoder.layers.0.fc1, …, shared
    decoder_with_past…   decoder.layers.0.fc1, …, shared

    provenance.components_of("decoder.layers.0")      ('decoder', 'decoder_with_past')

Every component has a record of its own, whose paths are those of the whole model. So the trees are parts of one tree,
and a path means the same module in all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from modelexport.errors import UnknownName
from modelexport.record.hierarchy import Hierarchy, Module, lineage_of
from modelexport.record.package import AbsentModule
from modelexport.record.provenance import Attribution, NodeEntry, Provenance


@dataclass(frozen=True)
class PackageProvenance:
    """What is known about all files of a package.

    components  the record of each component, by its name
    absent      modules with parameters that are in no file, and why
    """

    components: Mapping[str, Provenance]
    absent: tuple[AbsentModule, ...] = ()

    @cached_property
    def hierarchy(self) -> Hierarchy:
        """The modules of all components as one tree, in the order of the first component that has them.

        Calls are left out: each component has a run of its own.
        """
        modules: dict[str, Module] = {}
        for record in self.components.values():
            for path, module in record.hierarchy.modules.items():
                modules.setdefault(path, module)
        return Hierarchy.of(modules.values())

    @cached_property
    def _owning_components(self) -> Mapping[str, tuple[str, ...]]:
        """By module path: components with a node or an initializer of it, or of a module inside of it."""
        owning: dict[str, dict[str, None]] = {}
        for name, record in self.components.items():
            paths = {above for path in record.owning_paths for above in lineage_of(path)}
            for path in paths:
                owning.setdefault(path, {})[name] = None
        return {path: tuple(names) for path, names in owning.items()}

    def components_of(self, module: str) -> tuple[str, ...]:
        """Names of the components that have something of a module, or of one inside of it; empty if none has."""
        path = self.hierarchy.path_of(module)
        if path is None:
            raise UnknownName("module", module, self.hierarchy.canonical)
        return self._owning_components.get(path, ())

    def attribution(self, component: str, name_or_key: str) -> Attribution:
        """That of a node of one component: two files may have nodes of the same name."""
        if component not in self.components:
            raise UnknownName("component", component, self.components)
        return self.components[component].attribution(name_or_key)

    def tags_of(self, module: str) -> Mapping[str, str]:
        """The tag of a module by component, of those that know the module: one tag in all of them if all is well."""
        return {name: record.tags.tag(module) for name, record in self._knowing(module)}

    def classes_of(self, module: str) -> Mapping[str, str]:
        """The same of its class."""
        return {name: record.hierarchy.modules[module].class_name for name, record in self._knowing(module)}

    def _knowing(self, module: str) -> Iterator[tuple[str, Provenance]]:
        return (item for item in self.components.items() if module in item[1].hierarchy.modules)

    def nodes(self) -> Iterator[tuple[str, NodeEntry]]:
        """All nodes with the component that they are in, in file order."""
        for name, record in self.components.items():
            yield from ((name, entry) for entry in record.nodes.values())
