"""Which parameters of the model a stored value is. Exporters transpose weights and give them names of their own.

A value has a parameter's name, or it stands in for one: it belongs to the module that holds the parameter, it has as
many elements, and no other parameter there that is missing under its name has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modelexport.graph.index import KEY_SEPARATOR
from modelexport.record.hierarchy import Hierarchy, Module, TensorInfo, join
from modelexport.record.provenance import Provenance

Names = tuple[str, ...]


def parameter_names(provenance: Provenance) -> Mapping[str, Names]:
    """By value: its own name, and every name of the parameter that it is. Values that are no parameter are left out."""
    edges, groups = provenance.known_edges(), _groups(provenance.hierarchy)
    found: dict[str, Names] = {value: (value, *groups.get(value, ())) for value in edges.initializers}
    for value in edges.producers:
        plain = value.rpartition(KEY_SEPARATOR)[2]
        if plain in groups:  # a copy of a weight under the name of another
            found[value] = (plain, *groups[plain])
    for value, name in _stand_ins(provenance):
        found[value] = (value, *groups[name])
    return found


def _groups(hierarchy: Hierarchy) -> Mapping[str, Names]:
    """Every name of a parameter or buffer, mapped to all names of it."""
    found: dict[str, Names] = {}
    for module in hierarchy.modules.values():
        for tensor in module.tensors:
            names = (*_full_names(module, tensor), *tensor.tied)
            found.update(dict.fromkeys(_full_names(module, tensor), names))
    return found


def _full_names(module: Module, tensor: TensorInfo) -> Iterator[str]:
    return (join(path, tensor.name) for path in (module.path, *module.aliases))


def _stand_ins(provenance: Provenance) -> Iterator[tuple[str, str]]:
    hierarchy, sizes = provenance.hierarchy, provenance.known_edges().initializers
    for value, attribution in provenance.initializers.items():
        if value in hierarchy.tensor_owners or value not in sizes:
            continue
        for path in {owner.path for owner in attribution.owners}:
            module = hierarchy.modules.get(hierarchy.canonical.get(path, path))
            missing = [] if module is None else _missing(module, sizes)
            alike = [name for name, size in missing if size == sizes[value]]
            if len(alike) == 1:
                yield value, alike[0]


def _missing(module: Module, stored: Mapping[str, int]) -> list[tuple[str, int]]:
    """The parameters of a module that are not in the file under a name of theirs, with their sizes."""
    return [
        (join(module.path, tensor.name), tensor.size)
        for tensor in module.parameters
        if not any(name in stored for name in _full_names(module, tensor))
    ]
