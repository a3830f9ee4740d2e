"""Analysis of a package: one for each file, and the module tree over all of them.

    module                 nodes: encoder  decoder   parameters
    (model)                            3       13         114
    ├ bridge                           1        1          16     in both files, counted once

A parameter that several files hold is one parameter. Modules that are in no file are listed with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.module_totals import ModuleTotals
from modelexport.graph.parameters import ParameterMatching
from modelexport.inspect.analyze import Analysis, NodeFacts, analyze_file, filter_record
from modelexport.inspect.package.cache_bytes import CacheTensor, find_cache
from modelexport.record.hierarchy import Module
from modelexport.record.package import AbsentModule, ComponentLink, PackageInfo
from modelexport.record.package_provenance import PackageProvenance


@dataclass(frozen=True)
class PackageModule:
    """One module of the whole model, with everything inside of it.

    nodes       by component; those that have none are left out
    parameters  of all files, each counted once
    """

    path: str
    class_name: str
    tag: str
    nodes: Mapping[str, int]
    parameters: int

    @property
    def all_nodes(self) -> int:
        return sum(self.nodes.values())


@dataclass(frozen=True)
class PackageAnalysis:
    """All that `analyze` says of a package.

    components  the analysis of each file, by the name of its component
    modules     of the whole model, in the order of its hierarchy; those that are in no file are in `absent`
    """

    folder: str
    target: str
    model: str
    task: str
    components: Mapping[str, Analysis]
    modules: tuple[PackageModule, ...]
    absent: tuple[AbsentModule, ...]
    cache: tuple[CacheTensor, ...]
    links: tuple[ComponentLink, ...]
    filter_tag: str = ""
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[tuple[str, NodeFacts], ...]:
        """Of all files, each with its component."""
        return tuple((name, node) for name, analysis in self.components.items() for node in analysis.nodes)


def analyze_package_files(
    folder: str, info: PackageInfo, files: Mapping[str, TaggedFile], filter_tag: str | None = None
) -> PackageAnalysis:
    """Everything about the files of a package, or about what has a tag that contains `filter_tag`."""
    components = {name: analyze_file(file, filter_tag) for name, file in files.items()}
    return PackageAnalysis(
        folder=folder,
        target=info.target,
        model=info.model,
        task=info.task,
        components=components,
        modules=_join_modules(files, components, filter_tag),
        absent=info.absent,
        cache=find_cache(info, files),
        links=info.links,
        filter_tag=filter_tag or "",
        notes=tuple(info.notes),
    )


def _join_modules(
    files: Mapping[str, TaggedFile], components: Mapping[str, Analysis], filter_tag: str | None
) -> tuple[PackageModule, ...]:
    provenance = PackageProvenance({name: file.provenance for name, file in files.items()})
    totals = _sum_parameters(files, filter_tag)
    nodes: dict[str, dict[str, int]] = {}
    tags: dict[str, str] = {}
    for name, analysis in components.items():
        for facts in analysis.modules:
            tags.setdefault(facts.path, facts.tag)
            if facts.total.nodes:
                nodes.setdefault(facts.path, {})[name] = facts.total.nodes

    def join(module: Module) -> PackageModule:
        path = module.path
        parameters = totals.total(path).parameters
        return PackageModule(path, module.class_name, tags.get(path, ""), nodes.get(path, {}), parameters)

    joined = map(join, provenance.hierarchy.modules.values())
    return tuple(module for module in joined if module.nodes or module.parameters)


def _sum_parameters(files: Mapping[str, TaggedFile], filter_tag: str | None) -> ModuleTotals:
    """Of all files in one sum, which counts a parameter once, whatever files hold it."""
    totals = ModuleTotals()
    for file in files.values():
        record = file.provenance
        shown = filter_record(record, filter_tag) if filter_tag else record
        matching = ParameterMatching(file.graph, record, file.inlined)
        totals.add_initializers(file.graph, shown, matching, shown.initializers)
    return totals
