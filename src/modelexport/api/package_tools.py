"""Tools on packages: what a tool makes of each component is a package again, with one description.

    change_package(package, PackageTarget(Path("int4")), lambda file, path: quantize(file, path, weight_type="int4"))
    change_package(package, PackageTarget(Path("fast"), ("decoder",)), lambda file, path: run_tool(file, "ort", path))

The configuration of the consumer, the tokenizer, links and cache pairs stay; sizes, digests and data files are listed
anew. Everything is written, or nothing: also if what came out of one component does not come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from modelexport.api.package import Component, Package, open_files
from modelexport.api.package_writing import copy_tagged, find_target, rewrite_package
from modelexport.errors import UnknownName, UserError
from modelexport.graph.file.metadata import sidecar_path
from modelexport.graph.file.package import find_file
from modelexport.inspect.query.answer import answer_queries
from modelexport.record.results.files import PackageChange, QuantizeResult, RelinkResult

_Made = TypeVar("_Made", RelinkResult, QuantizeResult)


@dataclass(frozen=True)
class PackageTarget:
    """What is written.

    output       the folder
    only         names of the components that are changed; all if it is empty, else the others are copied
    number_type  of the weights afterwards, for consumers that name files by it; empty if it stays
    force        whether the folder may hold something
    """

    output: Path
    only: tuple[str, ...] = ()
    number_type: str = ""
    force: bool = False


class _Unrelated(Exception):
    """What came out of a component does not come from it; nothing is written."""


def change_package(
    package: Package, target: PackageTarget, change: Callable[[Path, Path], _Made]
) -> PackageChange[_Made]:
    """A package whose components are what `change` makes of them; it is given the file of one and the path to write to.

    It is a package for the same consumer: its configuration stays, and files are called as it wants them.
    """
    chosen = choose_components(package, target.only)
    contract = find_target(package)
    files = {name: contract.name_variant(package[name].info.file, target.number_type) for name in chosen}
    made: dict[str, _Made] = {}

    def write(component: Component, path: Path) -> None:
        if component.name not in chosen:
            copy_tagged(component, path)
            return
        made[component.name] = change(component.path, path)
        if made[component.name].path is None:
            # An exception, because the folder that is being written has to go as a whole.
            raise _Unrelated

    try:
        written = rewrite_package(package, target.output, write, files=files, force=target.force)
    except _Unrelated:
        return PackageChange(None, made)
    placed = {name: result.moved_to(*_list_files(written[name])) for name, result in made.items()}
    return PackageChange(target.output, placed, tuple(name for name in package if name not in chosen))


def choose_components(package: Package, only: Sequence[str]) -> tuple[str, ...]:
    """Names of the components that a tool is to run on, in the order of the package."""
    for name in only:
        if name not in package:
            raise UnknownName("component", name, package.components)
    return tuple(name for name in package if not only or name in only)


def _list_files(component: Component) -> tuple[Path, ...]:
    """The file of a component, its weights, and its record."""
    path = component.path
    data = (find_file(component.folder, name) for name in component.info.data)
    return tuple(file for file in (path, *data, sidecar_path(path)) if file.is_file())


@dataclass(frozen=True)
class ToolOptions:
    """What a tool is told about parts of a model; of a package, each component is told what is about it.

    exclude, include  queries
    op_types          names of operators
    input             NAME=SHAPE, for inputs that are made
    """

    exclude: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    op_types: tuple[str, ...] = ()
    input: tuple[str, ...] = ()


def run_on_package(
    package: Package,
    target: PackageTarget,
    options: ToolOptions,
    change: Callable[[Path, Path, ToolOptions], _Made],
) -> PackageChange[_Made]:
    """`change_package` for a tool that is told about parts of the model. What no component has is a UserError.

    A component that has none of what is included is copied.
    """
    chosen = choose_components(package, target.only)
    parts = _ComponentParts.of(package, chosen, options)
    component_options = {package[name].path: parts.tell(name, options) for name in chosen}
    meant = tuple(name for name in chosen if _is_meant(component_options[package[name].path], options))
    narrowed = replace(target, only=meant)
    return change_package(package, narrowed, lambda file, path: change(file, path, component_options[file]))


def _is_meant(of_component: ToolOptions, options: ToolOptions) -> bool:
    has_included = bool(of_component.include or not options.include)
    return has_included and bool(of_component.op_types or not options.op_types)


@dataclass(frozen=True)
class _ComponentParts:
    """What components have that options are about, by component: looked up once, and only what is asked for.

    queries  those that select a node of it
    """

    queries: Mapping[str, frozenset[str]]
    operators: Mapping[str, frozenset[str]]
    inputs: Mapping[str, frozenset[str]]

    @staticmethod
    def of(package: Package, chosen: Sequence[str], options: ToolOptions) -> _ComponentParts:
        """An option that is about nothing in any of them is a UserError."""
        components = [package[name] for name in chosen]
        operators = {item.name: _find_operators(item) for item in components} if options.op_types else {}
        inputs = {item.name: frozenset(item.info.inputs) for item in components} if options.input else {}
        _ensure_known("operator of the package", options.op_types, operators)
        _ensure_known("input", map(_input_name, options.input), inputs)
        queries = _select_queries(components, (*options.exclude, *options.include))
        return _ComponentParts(queries, operators, inputs)

    def tell(self, component: str, options: ToolOptions) -> ToolOptions:
        """Of these options, those that are about something in a component."""
        selecting = self.queries.get(component, frozenset())
        operators, inputs = self.operators.get(component, ()), self.inputs.get(component, ())
        return ToolOptions(
            tuple(text for text in options.exclude if text in selecting),
            tuple(text for text in options.include if text in selecting),
            tuple(name for name in options.op_types if name in operators),
            tuple(text for text in options.input if _input_name(text) in inputs),
        )


def _input_name(text: str) -> str:
    return text.rpartition("=")[0]


def _find_operators(component: Component) -> frozenset[str]:
    return frozenset(node.op_type for node in component.file.graph.nodes)


def _ensure_known(kind: str, names: Iterable[str], known: Mapping[str, frozenset[str]]) -> None:
    everywhere = frozenset().union(*known.values())
    for name in names:
        if name not in everywhere:
            raise UnknownName(kind, name, sorted(everywhere))


def _select_queries(components: Sequence[Component], queries: Sequence[str]) -> dict[str, frozenset[str]]:
    """By component: the queries that select a node of it. One that selects nothing in any of them is a UserError."""
    # A query may be about one component alone; only one that is about none of them is a mistake.
    selecting: dict[str, set[str]] = {component.name: set() for component in components}
    for text in queries:
        answers = list(answer_queries(text, [item.provenance for item in components], whole_modules=True))
        if not any(answer.nodes for answer in answers):
            remarks = dict.fromkeys(remark for answer in answers for remark in answer.remarks)
            hint = "; ".join(remarks) + ". Try it with `modelexport query`."
            raise UserError(f"the query selects nothing: {text}", hint)
        for component, answer in zip(components, answers, strict=True):
            selecting[component.name] |= {text} if answer.nodes else set()
    return {name: frozenset(texts) for name, texts in selecting.items()}


def make_component_feeds(package: Package, count: int, seed: int) -> dict[Path, tuple[dict[str, np.ndarray], ...]]:
    """By the file of a component: what it is fed while the package generates. Nothing of a package without a cache.

    Caches are what the files themselves make of made-up tokens.
    """
    from modelexport.capture.onnxruntime.generated_feeds import make_steps

    if not any(component.info.cache for component in package.components.values()):
        return {}
    files = open_files(package)
    steps = make_steps(package.info, files, count, seed)
    return {package[name].path: tuple(feeds) for name, feeds in steps.items()}


def ensure_one_component(package: Package, only: Sequence[str], option: str, given: object) -> None:
    """Raise UserError if arrays are given for several components: they take different inputs."""
    if given and len(only or package.components) > 1:
        raise UserError(
            f"{option} is for one component, and {package.folder} has {len(package)}",
            "Say which one: --component NAME; the others are copied, and can be changed afterwards.",
        )


def find_number_type(tool: str) -> str:
    """The type that a chain of tools gives to weights: `onnxslim+int4` makes them int4; empty if they stay."""
    from modelexport.transform.tools.catalogue import parse_chain

    types = [step.number_type for step, _ in parse_chain(tool) if step.number_type]
    return types[-1] if types else ""
