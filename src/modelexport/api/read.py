"""Read: load, analyze, query, cost, compare and validate a file. No torch, no run of a model, no weight is read.

    load("bert.onnx").attribution("node_linear").module     # 'encoder.layer.0.attention.self.query'
    query("bert.onnx", "module=encoder.** & op=MatMul")     # nodes, in file order
    cost("bert.onnx", {"batch": 8})                         # FLOPs as numbers; without sizes as polynomials

Each opens the file once (`TaggedFile`) and hands it to its room in `inspect/`. A file without a record is asked with
the modules that it tells of itself (`api/opening`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from modelexport.api.opening import note_source, open_file
from modelexport.errors import UserError, nearest_name
from modelexport.graph.file.tagged_file import TaggedFile, open_tagged, read_sidecar
from modelexport.inspect.analyze import Analysis, analyze_file
from modelexport.inspect.cost.totals import count
from modelexport.inspect.query.answer import Answer, answer_query
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.record.results.cost import Cost

if TYPE_CHECKING:
    from modelexport.inspect.compare import Comparison
    from modelexport.inspect.validate import Validation

# Names of axes that an error lists.
_SHOWN = 12
# More than this is no size of a tensor in ONNX.
_LARGEST = 2**63 - 1


def load(path: str | Path) -> Provenance:
    """What is known about an ONNX file, for exactly the nodes that it has; or a sidecar as it is, without tensors."""
    path = Path(path)
    if path.suffix == ".json":
        return read_sidecar(path)
    return open_file(path).provenance_with_edges


def analyze(path: str | Path, filter_tag: str | None = None) -> Analysis:
    """What a file consists of, module by module. `filter_tag` keeps the nodes whose tag contains it."""
    file = open_file(Path(path))
    return replace(analyze_file(file, filter_tag), notes=note_source(file))


def query(source: str | Path | Provenance, text: str) -> tuple[NodeEntry, ...]:
    """The nodes that a query such as `module=encoder.** & op=MatMul` means, in file order."""
    return answer(source, text).nodes


def answer(source: str | Path | Provenance, text: str) -> Answer:
    """The same with what it was asked of, and the reason where there are no nodes."""
    if isinstance(source, Provenance) or Path(source).suffix == ".json":
        return answer_query(text, source if isinstance(source, Provenance) else load(source))
    file = open_file(Path(source))
    answered = answer_query(text, file.provenance_with_edges)
    return replace(answered, remarks=(*answered.remarks, *file.stale_notes), notes=note_source(file))


def cost(source: str | Path, at: Mapping[str, int] | None = None) -> Cost:
    """FLOPs, parameters, and bytes of weights and activations of each node and module, from shapes.

    at  sizes of axes that the file leaves open, such as {"batch": 8}; amounts are polynomials of those that remain
    """
    sizes = dict(at or {})
    ensure_sizes(sizes)
    opened = open_file(Path(source))
    counted = count(str(source), opened, opened.provenance, sizes)
    # After the count, which knows the axes of all inputs by their names.
    ensure_axes(counted, sizes)
    return replace(counted, notes=(*counted.notes, *opened.stale_notes, *note_source(opened)))


def compare(a: str | Path, b: str | Path) -> Comparison:
    """How two files differ, module by module."""
    from modelexport.inspect.compare import compare_files

    files = open_file(Path(a)), open_file(Path(b))
    return replace(compare_files(*files), notes=note_source(*files))


def validate(
    path: str | Path,
    check_consistency: bool = False,
    repair: bool = False,
    output: str | Path | None = None,
    require_record: bool = False,
) -> Validation:
    """Check a file, its record and its tags. Whatever is wrong with them is a finding.

    check_consistency  also look for attributions that dataflow rules out
    repair             first rewrite the keys on the nodes from the record, in place or into `output`
    require_record     that there is no record is an error, and not a warning
    """
    from modelexport.inspect.validate import run_checks

    file = open_tagged(Path(path))
    repaired, written = _repair_keys(file, None if output is None else Path(output)) if repair else (0, "")
    validation = run_checks(file, check_consistency=check_consistency, require_record=require_record)
    return replace(validation, repaired=repaired, written=written)


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


def ensure_axes(counted: Cost, sizes: Mapping[str, int]) -> None:
    """Raise UserError for axes that a file does not have, with the nearest name that it has.

    A size for an axis that is not there would change nothing, and look as if it had.
    """
    names = [axis.name for axis in counted.axes]
    missing = next((name for name in sizes if name not in names), None)
    if missing is None:
        return
    near = nearest_name(missing, names)
    shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else ".")
    guess = f"Did you mean {near!r}? " if near else ""
    raise UserError(
        f"{counted.file} has no axis {missing!r}", f"{guess}It has {shown}" if names else "All of its axes have a size."
    )
