"""Validation of a package: every file by itself, and what joins them. Findings are values, not exceptions.

Each check is one function that yields findings; to add one, write it and name it in `_CHECKS`, at the end.

    file-changed        decoder_model.onnx     it is not the file that the package was written with
    link-type           encoder → decoder      last_hidden_state is float16, and encoder_hidden_states float32
    cache-shape         past_key_values.0.key  (batch, 8, past, 64), and present.0.key (batch, 8, total, 32)
    module-lost         vision_tower           it has parameters and is in no file, and nothing says why

Two axes agree unless both have a size and the sizes differ: the past is shorter than the present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from modelexport.errors import RecordMismatch, some_of
from modelexport.graph.file.package import find_changed_files, find_file, list_files_beside
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.types import Dims, type_name
from modelexport.inspect.validate import Finding, Severity, Validation, error
from modelexport.record.hierarchy import parent_path
from modelexport.record.package import PackageInfo
from modelexport.record.package_provenance import PackageProvenance
from modelexport.record.provenance import Provenance


@dataclass(frozen=True)
class PackageValidation:
    """
    checks      names of the checks of what joins the files
    findings    of these checks
    components  the validation of each file that can be read, by the name of its component
    renewed     files beside the models whose size and digest were written anew by a repair
    """

    folder: str
    checks: tuple[str, ...]
    findings: tuple[Finding, ...]
    components: Mapping[str, Validation]
    renewed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        joined = any(finding.severity is Severity.ERROR for finding in self.findings)
        return not joined and all(validation.ok for validation in self.components.values())

    def with_repairs(self, repaired: Mapping[str, int], renewed: tuple[str, ...]) -> PackageValidation:
        """The same after a repair: nodes that were given other keys, by component, and files that were renewed."""
        components = {
            name: replace(item, repaired=repaired[name], written=item.path) if name in repaired else item
            for name, item in self.components.items()
        }
        return replace(self, components=components, renewed=renewed)


@dataclass(frozen=True)
class OpenedFiles:
    """What checks look at: the files of a package that can be read, and why others cannot."""

    folder: Path
    info: PackageInfo
    files: Mapping[str, TaggedFile]
    unreadable: Mapping[str, str]

    @cached_property
    def records(self) -> PackageProvenance:
        """Of the files that have a record of their own graph."""
        fitted = {name: _fitting_record(file) for name, file in self.files.items()}
        records = {name: record for name, record in fitted.items() if record is not None}
        return PackageProvenance(records, self.info.absent)


def _fitting_record(file: TaggedFile) -> Provenance | None:
    try:
        return None if file.related_record is None else file.provenance
    except RecordMismatch:
        return None


def check_package(opened: OpenedFiles) -> tuple[tuple[str, ...], tuple[Finding, ...]]:
    """Names of all checks, and what they found."""
    return tuple(_CHECKS), tuple(finding for check in _CHECKS.values() for finding in check(opened))


def _check_digests(opened: OpenedFiles) -> Iterator[Finding]:
    """Files with another content. Models that are missing, or of another size, were found when it was opened."""
    beside = list_files_beside(opened.info)
    for name in find_changed_files(opened.folder, opened.info):
        if name in beside:
            message = "it was edited since the package was written; --repair lists it as it is now"
        else:
            message = "it is not the file that the package was written with: other content"
        yield error("file-changed", name, message)
    for name in beside:
        if not find_file(opened.folder, name).is_file():
            yield error("file-missing", name, "the file is part of the package, and is not there: put it back")


def _check_readable(opened: OpenedFiles) -> Iterator[Finding]:
    for name, reason in opened.unreadable.items():
        yield error("component-unreadable", name, reason)


def _check_ends(opened: OpenedFiles) -> Iterator[Finding]:
    """What the package says that a file is given and returns is what the file is given and returns, in this order."""
    for component in opened.info.components:
        file = opened.files.get(component.name)
        if file is None:
            continue
        for what, stated, there in (
            ("inputs", component.inputs, file.graph.fed_inputs),
            ("outputs", component.outputs, file.graph.outputs),
        ):
            if stated != there:
                yield error(f"component-{what}", component.name, _ends_text(what, stated, there))


def _ends_text(what: str, stated: tuple[str, ...], there: tuple[str, ...]) -> str:
    missing = [name for name in stated if name not in there]
    further = [name for name in there if name not in stated]
    if not missing and not further:
        return f"the file has its {what} in another order than the package says"
    parts = [f"has no {some_of(missing)}" if missing else "", f"has also {some_of(further)}" if further else ""]
    return f"of its {what}, the file {' and '.join(filter(None, parts))}"


def _check_links(opened: OpenedFiles) -> Iterator[Finding]:
    """An output can be handed on only to an input of the same type and shape."""
    for link in opened.info.links:
        source, target = opened.files.get(link.source), opened.files.get(link.target)
        if source is not None and target is not None:
            subject = f"{link.source} → {link.target}"
            yield from _compare_values("link", subject, (source, link.output), (target, link.input))


def _check_cache(opened: OpenedFiles) -> Iterator[Finding]:
    """What comes out of a step goes into the next one."""
    for component in opened.info.components:
        file = opened.files.get(component.name)
        if file is None:
            continue
        for pair in component.cache:
            yield from _compare_values("cache", component.name, (file, pair.present), (file, pair.past))


_End = tuple[TaggedFile, str]


def _compare_values(kind: str, subject: str, made: _End, read: _End) -> Iterator[Finding]:
    (source, output), (target, given) = made, read
    if output not in source.graph.outputs or given not in target.graph.inputs:
        return  # what is not there at all is found by the check of inputs and outputs
    types = source.types.dtype(output), target.types.dtype(given)
    if types[0] != types[1]:
        names = f"{output} is {type_name(types[0])}, and {given} {type_name(types[1])}"
        yield error(f"{kind}-type", subject, names)
    shapes = source.types.dims(output), target.types.dims(given)
    if not _are_compatible(*shapes):
        yield error(
            f"{kind}-shape", subject, f"{output} is {_dims_text(shapes[0])}, and {given} {_dims_text(shapes[1])}"
        )


def _are_compatible(made: Dims | None, read: Dims | None) -> bool:
    if made is None or read is None:
        return True
    pairs = zip(made, read, strict=False)
    apart = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in pairs)
    return len(made) == len(read) and not apart


def _dims_text(dims: Dims | None) -> str:
    return "of unknown shape" if dims is None else f"({', '.join(str(dim) or '?' for dim in dims)})"


def _check_tags(opened: OpenedFiles) -> Iterator[Finding]:
    """A path means one module in all files, so it has one class and one tag."""
    records = opened.records
    for path in records.hierarchy.modules:
        for what, texts in (("class", records.classes_of(path)), ("tag", records.tags_of(path))):
            if len({*texts.values()}) > 1:
                shown = ", ".join(f"{text} in {name}" for name, text in texts.items())
                yield error(f"{what}-differs", path, f"the module has more than one {what}: {shown}")


def _check_absent(opened: OpenedFiles) -> Iterator[Finding]:
    """Modules with parameters that are in no file: those that the package lists are a warning, others an error."""
    for absent in opened.info.absent:
        message = f"{absent.class_name} with {absent.parameters} parameters is in no file: {absent.reason}"
        yield Finding(Severity.WARNING, "module-absent", absent.path or "(model)", message)
    if opened.unreadable or len(opened.records.components) < len(opened.info.components):
        return  # what is in a file without a record, nobody knows
    listed = {absent.path for absent in opened.info.absent}
    for path, module in opened.records.hierarchy.modules.items():
        is_there = bool(opened.records.components_of(path))
        if module.parameters and not is_there and not _is_listed(path, listed):
            reason = _recorded_reason(opened.records, path)
            yield error("module-lost", path, f"{module.class_name} has parameters and is in no file: {reason}")


def _is_listed(path: str, listed: set[str]) -> bool:
    """Also by a module around it; the root is listed for its own parameters alone."""
    while path and path not in listed:
        path = parent_path(path)
    return bool(path) and path in listed


def _recorded_reason(records: PackageProvenance, path: str) -> str:
    reasons = (record.absent[path] for record in records.components.values() if path in record.absent)
    return next(reasons, "the package does not say why")


_CHECKS: dict[str, Callable[[OpenedFiles], Iterator[Finding]]] = {
    "digests": _check_digests,
    "components readable": _check_readable,
    "inputs and outputs": _check_ends,
    "links": _check_links,
    "cache pairs": _check_cache,
    "one tag for a module": _check_tags,
    "modules in no file": _check_absent,
}
