"""Read: load, analyze, query, cost, compare and validate a file. No torch, no run of a model, no weight is read.

    load("bert.onnx").attribution("node_linear").module     # 'encoder.layer.0.attention.self.query'
    query("bert.onnx", "module=encoder.** & op=MatMul")     # nodes, in file order
    cost("bert.onnx", {"batch": 8})                         # FLOPs as numbers; without sizes as polynomials

Each opens the file once (`TaggedFile`) and hands it to its room in `inspect/`. A file without a record is asked with
the modules that it tells of itself (`api/opening`). The path of a package, and an opened one, go to `package_reading`.
A type checker cannot tell the path of a folder from that of a file: the result is then that of a file, or `Any`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from modelexport.api.opening import note_source, open_file
from modelexport.api.package import find_package, find_packages
from modelexport.errors import FileMalformed, UserError, propose_name
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged, read_sidecar
from modelexport.record.provenance import NodeEntry, Provenance

# Each verb imports its own room: to import all of them takes longer than to answer about a small file.
if TYPE_CHECKING:
    from modelexport.api.package import Package
    from modelexport.inspect.analyze import Analysis
    from modelexport.inspect.compare import Comparison
    from modelexport.inspect.package.analyze import PackageAnalysis
    from modelexport.inspect.package.cost import PackageCost
    from modelexport.inspect.package.pairs import PackagePair
    from modelexport.inspect.package.validate import PackageValidation
    from modelexport.inspect.query.answer import Answer, PackageAnswer
    from modelexport.inspect.validate import Validation
    from modelexport.record.package_provenance import PackageProvenance
    from modelexport.record.results.cost import Cost

# More than this is no size of a tensor in ONNX.
_LARGEST = 2**63 - 1


@overload
def load(path: str | Path) -> Provenance | Any: ...
@overload
def load(path: Package) -> PackageProvenance: ...
def load(path: str | Path | Package) -> Provenance | PackageProvenance:
    """What is known about an ONNX file, for exactly the nodes that it has; or a sidecar as it is, without tensors.

    Of a package: one module tree, and the records of the files by component.
    """
    if (package := find_package(path)) is not None:
        return package.provenance
    path = Path(path)
    if path.suffix == ".json":
        return read_sidecar(path)
    return open_file(path).provenance_with_edges


@overload
def analyze(path: str | Path, filter_tag: str | None = None) -> Analysis | Any: ...
@overload
def analyze(path: Package, filter_tag: str | None = None) -> PackageAnalysis: ...
def analyze(path: str | Path | Package, filter_tag: str | None = None) -> Analysis | PackageAnalysis:
    """What a file or a package consists of, module by module. `filter_tag` keeps the nodes whose tag contains it."""
    if (package := find_package(path)) is not None:
        from modelexport.api.package_reading import analyze_package

        return analyze_package(package, filter_tag)
    from modelexport.inspect.analyze import analyze_file

    file = open_file(Path(path))
    return replace(analyze_file(file, filter_tag), notes=(*note_source(file), *file.key_notes))


@overload
def query(source: str | Path | Provenance, text: str) -> tuple[NodeEntry, ...] | Any: ...
@overload
def query(source: Package, text: str) -> tuple[tuple[str, NodeEntry], ...]: ...
def query(
    source: str | Path | Provenance | Package, text: str
) -> tuple[NodeEntry, ...] | tuple[tuple[str, NodeEntry], ...]:
    """The nodes that a query such as `module=encoder.** & op=MatMul` means, in file order.

    Those of a package come with the names of their components.
    """
    return answer(source, text).nodes


@overload
def answer(source: str | Path | Provenance, text: str) -> Answer | Any: ...
@overload
def answer(source: Package, text: str) -> PackageAnswer: ...
def answer(source: str | Path | Provenance | Package, text: str) -> Answer | PackageAnswer:
    """The same with what it was asked of, and the reason where there are no nodes."""
    if not isinstance(source, Provenance) and (package := find_package(source)) is not None:
        from modelexport.api.package_reading import answer_package

        return answer_package(package, text)
    from modelexport.inspect.query.answer import answer_query

    if isinstance(source, Provenance) or Path(source).suffix == ".json":
        return answer_query(text, source if isinstance(source, Provenance) else read_sidecar(Path(source)))
    file = open_file(Path(source))
    answered = answer_query(text, file.provenance_with_edges)
    return replace(answered, remarks=(*answered.remarks, *file.stale_notes, *file.key_notes), notes=note_source(file))


@overload
def cost(source: str | Path, at: Mapping[str, int] | None = None) -> Cost | Any: ...
@overload
def cost(source: Package, at: Mapping[str, int] | None = None) -> PackageCost: ...
def cost(source: str | Path | Package, at: Mapping[str, int] | None = None) -> Cost | PackageCost:
    """FLOPs, parameters, and bytes of weights and activations of each node and module, from shapes.

    at  sizes of axes that the file leaves open, such as {"batch": 8}; amounts are polynomials of those that remain
    """
    sizes = dict(at or {})
    ensure_sizes(sizes)
    _ensure_sum(sizes)
    if (package := find_package(source)) is not None:
        from modelexport.api.package_reading import cost_package

        return cost_package(package, sizes)
    from modelexport.inspect.cost.totals import count

    opened = open_file(Path(source))
    counted = count(str(source), opened, opened.provenance, sizes)
    # After the count, which knows the axes of all inputs by their names.
    ensure_axes(counted, sizes)
    return replace(counted, notes=(*counted.notes, *opened.stale_notes, *note_source(opened)))


@overload
def compare(a: str | Path, b: str | Path) -> Comparison | Any: ...
@overload
def compare(a: Package, b: Package) -> PackagePair[Comparison]: ...
def compare(a: str | Path | Package, b: str | Path | Package) -> Comparison | PackagePair[Comparison]:
    """How two files differ, module by module; or two packages, file by file."""
    if (packages := find_packages(a, b)) is not None:
        from modelexport.api.package_reading import pair_packages

        return pair_packages(*packages, compare)
    from modelexport.inspect.compare import compare_files

    files = open_file(Path(a)), open_file(Path(b))
    return replace(compare_files(*files), notes=note_source(*files))


@overload
def validate(
    path: str | Path,
    check_consistency: bool = False,
    repair: bool = False,
    output: str | Path | None = None,
    require_record: bool = False,
) -> Validation | Any: ...
@overload
def validate(
    path: Package,
    check_consistency: bool = False,
    repair: bool = False,
    output: str | Path | None = None,
    require_record: bool = False,
) -> PackageValidation: ...
def validate(
    path: str | Path | Package,
    check_consistency: bool = False,
    repair: bool = False,
    output: str | Path | None = None,
    require_record: bool = False,
) -> Validation | PackageValidation:
    """Check a file, its record and its tags, or a package with all of its files. Whatever is wrong is a finding.

    check_consistency  also look for attributions that dataflow rules out
    repair             first rewrite the keys on the nodes from the record, in place or into `output`; of a package, a
                       folder, and files beside its models that were edited are listed as they are now
    require_record     that there is no record is an error, and not a warning
    """
    if (package := find_package(path)) is not None:
        from modelexport.api.package_reading import validate_package
        from modelexport.api.package_writing import repair_package

        target = None if output is None else Path(output)
        repaired = repair_package(package, target) if repair else None
        package = package if repaired is None else repaired.package
        validation = validate_package(package, check_consistency=check_consistency, require_record=require_record)
        return validation if repaired is None else validation.with_repairs(repaired.nodes, repaired.renewed)
    from modelexport.inspect.validate import report_faults, run_checks

    try:
        file = open_tagged(Path(path))
    except FileMalformed as error:
        return report_faults(str(path), error.faults)
    nodes, written = _repair_keys(file, None if output is None else Path(output)) if repair else (0, "")
    checked = run_checks(file, check_consistency=check_consistency, require_record=require_record)
    return replace(checked, repaired=nodes, written=written)


def _repair_keys(file: TaggedFile, output: Path | None) -> tuple[int, str]:
    """How many nodes were given other keys, and the file that they went to; a file that is right is left alone."""
    from modelexport.graph.file.writing import ensure_model_target, save_model
    from modelexport.inspect.validate import repair_keys

    repaired = repair_keys(file)
    if not repaired and output is None:
        return 0, ""
    target = file.path if output is None else output
    ensure_model_target(target)
    save_model(file, target)
    return repaired, str(target)


def ensure_sizes(sizes: Mapping[str, object], least: int = 0) -> None:
    """Raise UserError for what is no size of an axis. `True` is an int to Python, and no size."""
    for name, size in sizes.items():
        if type(size) is not int or not least <= size <= _LARGEST:
            shown = repr(size) if type(size) is not int or abs(size) <= _LARGEST else "that large"
            limits = f"Sizes are whole numbers from {least} to {_LARGEST}."
            raise UserError(f"the axis {name!r} cannot have the size {shown}", limits)


def _ensure_sum(sizes: Mapping[str, int]) -> None:
    """Raise UserError for a mask of another length than what is past and what is new together."""
    from modelexport.record.package import Axis

    if not {Axis.PAST, Axis.SEQUENCE, Axis.TOTAL} <= sizes.keys():
        return
    past, new, total = sizes[Axis.PAST], sizes[Axis.SEQUENCE], sizes[Axis.TOTAL]
    if total != past + new:
        raise UserError(
            f"{Axis.TOTAL} is {total}, and {Axis.PAST} {past} and {Axis.SEQUENCE} {new} are {past + new} together",
            f"Leave {Axis.TOTAL} out.",
        )


def ensure_axes(counted: Cost, sizes: Mapping[str, int]) -> None:
    """Raise UserError for axes that a file does not have, with the nearest name that it has.

    A size for an axis that is not there would change nothing, and look as if it had.
    """
    names = [axis.name for axis in counted.axes]
    missing = next((name for name in sizes if name not in names), None)
    if missing is None:
        return
    hint = propose_name(missing, names, "It has") if names else "All of its axes have a size."
    raise UserError(f"{counted.file} has no axis {missing!r}", hint)
