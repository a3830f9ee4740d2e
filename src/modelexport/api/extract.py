"""Extract: cut modules out of a file, as files of their own.

    whole   ids ─► embeddings ─► layer.0 ─► layer.1 ─► pooler ─► y
    part    hidden ─► layer.0 ─► out          what crossed the module's border is now its input and output

Steps: read, select what was asked for (paths, calls, queries), cut, write with the record of the part, and compare with
the PyTorch module if the model is given (`extract_check`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx

from modelexport.api.environment import Clock, Progress
from modelexport.api.opening import ensure_runnable, note_source, open_file
from modelexport.api.options import as_sequence, parse_embedding
from modelexport.api.package import Component, Package, find_package
from modelexport.api.package_reading import answer_package
from modelexport.api.writing import ensure_apart, write_tagged
from modelexport.errors import FileUnreadable, ModelExportError, UnknownName, UserError
from modelexport.graph.file.metadata import CUT_KEY, EmbedOptions
from modelexport.graph.file.package import refuse_package
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.file.weights import storage_size
from modelexport.graph.file.writing import Storage, ensure_model_target
from modelexport.graph.soundness import check_graph, ensure_sound
from modelexport.graph.types import type_name
from modelexport.inspect.query.answer import answer_query
from modelexport.record.hierarchy import ROOT, Hierarchy, ModuleCall, lineage_of
from modelexport.record.model_source import ModelSource
from modelexport.record.provenance import NodeEntry, Provenance
from modelexport.record.results.files import End, Extraction
from modelexport.transform.extract.assembly import ExtractedPart, assemble_part
from modelexport.transform.extract.cut import Cut, Cutter
from modelexport.transform.extract.selection import CutSelection, select_modules, select_nodes

if TYPE_CHECKING:
    import torch

# Weights that lie beside a file go into the extracted one if they are no more than this.
_INSIDE = 1 << 28
_COMPARISONS = frozenset("=<>")


def extract(  # noqa: PLR0913 - the keywords are the command line's options
    file: str | Path | Package | Component,
    modules: str | Sequence[str],
    output: str | Path,
    *,
    model: torch.nn.Module | str | Path | None = None,
    inputs: object = None,
    tolerance: float | None = None,
    embed: str = "full",
    task: str | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    text: str | None = None,
    image: str | Path | None = None,
    input: Sequence[str] = (),
    input_specs: str | Path | None = None,
    progress: Progress | None = None,
) -> Extraction:
    """Write a part of a file as a file of its own, with the record of what is in it.

    file     or a package, if one of its files alone has what is asked for
    modules  a module (`encoder.layer.0`), a call of one (`block#2`), a query (`role=attention.* & layer=0`), or several
    model    what the file was exported from: the extracted file is then fed what the module was given in a run of it,
             and compared with what the module returned
    tolerance  1e-4 if none is given, and relative to numbers of a type with few bits what these can tell apart
    """
    target = Path(output)
    ensure_model_target(target)
    package = None if isinstance(file, Component) else find_package(file)
    path = Path(file) if package is None else _find_component(package, as_sequence(modules, "modules")).path
    ensure_apart(target, path)
    if tolerance is not None and not tolerance >= 0:
        raise UserError(f"no tolerance: {tolerance}", "Give a number from 0 on.")
    embedding = parse_embedding(embed, "torch", False)
    source = None
    if model is not None:
        source = ModelSource(
            model, inputs, task, dtype, device, seed, trust_remote_code, allow_pickle, text, image, input, input_specs
        )
    clock = Clock(progress)
    with clock.step("read"):
        opened = open_file(path)
        ensure_sound(opened.proto, opened.graph, str(path))
        if source is not None:
            ensure_runnable(opened)
    with clock.step("cut"):
        cutter = Cutter(opened, opened.provenance_with_edges)
        cut = cutter.cut(select_asked(cutter.provenance, as_sequence(modules, "modules")))
    with clock.step("write"):
        extraction = write_part(opened, cutter, cut, target, embedding)
    if source is not None:
        from modelexport.api.extract_check import check_extracted

        extraction = replace(extraction, check=check_extracted(opened, cut, extraction, source, tolerance, clock))
    return replace(extraction, seconds=clock.seconds)


def write_part(
    opened: TaggedFile, cutter: Cutter, cut: Cut, target: Path, options: EmbedOptions | None = None
) -> Extraction:
    """Write the file of a cut, valid ONNX with the record of the part, and say what is in it."""
    extracted = assemble_part(opened, cutter.provenance, cut, cutter.types)
    _mark_origin(extracted, opened, cut)
    # A cut that is not valid is a fault of ours; a file that says so only when it is loaded would hide where.
    complaint = check_graph(extracted.file)
    if complaint is not None and (invalid := check_graph(opened)) is not None:
        raise FileUnreadable(
            f"{opened.path} is not valid ONNX, so that nothing can be cut out of it: {invalid}",
            "Make the file again with the tool that wrote it.",
        )
    if complaint is not None:
        raise ModelExportError(
            f"what was cut out for {' '.join(cut.selection.asked)} is not valid ONNX: {complaint}",
            "Validate the file that it is cut from: `modelexport validate`. If that is valid, report this.",
        )
    graph = extracted.file.proto.graph
    own = [cutter.provenance.nodes[node.key] for node in cut.nodes if node.key not in cut.along]
    weights = sum(map(storage_size, graph.initializer))
    inside = False if weights <= _INSIDE else None
    embedding = options or EmbedOptions()
    written = write_tagged(extracted.file, extracted.provenance, target, embedding, storage=Storage(inside))
    return Extraction(
        source=str(opened.path),
        path=target,
        files=written.files,
        asked=cut.selection.asked,
        modules=tuple(map(str, cut.selection.calls)),
        class_name=extracted.provenance.hierarchy.modules[ROOT].class_name,
        provenance=extracted.provenance,
        inputs=tuple(_describe_ends(graph.input, extracted)),
        outputs=tuple(_describe_ends(graph.output, extracted)),
        shared=sum(not all(map(cut.selection.covers, entry.attribution.owners)) for entry in own),
        along=len(cut.along) - len(cut.shapes) + extracted.added,
        weights=weights,
        notes=(*cut.notes, *note_source(opened)),
    )


def _find_component(package: Package, asked: Sequence[str]) -> Component:
    """The only file, or the only one that has something of everything that is asked for."""
    names = [*package]
    if len(names) > 1:
        for text in asked:
            holding = _find_holders(package, text)
            names = [name for name in names if name in holding]
    if len(names) == 1:
        return package[names[0]]
    files = [package[name].info.file for name in names or package]
    held = f"is in {len(names)} of its files" if names else "is in none of its files"
    said = f"{package.folder} is a package of {len(package)} files, and {', '.join(asked)} {held}"
    raise refuse_package(package.folder, files, said)


def _find_holders(package: Package, text: str) -> Sequence[str]:
    """Components with nodes of a module, a call of one, or a query."""
    hierarchy = package.provenance.hierarchy
    if _is_query(text, hierarchy):
        return list(dict.fromkeys(name for name, _ in answer_package(package, text).nodes))
    path = hierarchy.path_of(text if text in hierarchy.canonical else ModuleCall.parse(text).path)
    if path is None:
        raise UnknownName("module", text, hierarchy.canonical)
    # By nodes, and not by `components_of`: of a weight that modules share, all of them are said to have something.
    owners = ((name, owner.path) for name, entry in package.provenance.nodes() for owner in entry.attribution.owners)
    return list(dict.fromkeys(name for name, owner in owners if path in lineage_of(owner)))


def select_asked(provenance: Provenance, asked: Sequence[str]) -> CutSelection:
    if not asked:
        raise UserError("nothing was asked for", "Give a module, a call of one, or a query.")
    queries = [text for text in asked if _is_query(text, provenance.hierarchy)]
    # Whole calls keep their borders; once a query is among them, what is asked for is a set of nodes.
    if not queries:
        return select_modules(provenance, asked)
    nodes: dict[str, NodeEntry] = {}
    for text in queries:
        answer = answer_query(text, provenance)
        if not answer.nodes:
            raise UserError(f"no node matches {answer.query}", "; ".join(answer.remarks))
        nodes.update({entry.key: entry for entry in answer.nodes})
    if names := [text for text in asked if text not in queries]:
        covers = select_modules(provenance, names).covers
        entries = provenance.nodes.items()
        nodes.update({key: entry for key, entry in entries if any(map(covers, entry.attribution.owners))})
    return select_nodes(provenance, " ".join(asked), list(nodes.values()))


def _is_query(text: str, hierarchy: Hierarchy) -> bool:
    """Names of modules hardly have a `=` in them; one that does is that module."""
    known = hierarchy.canonical
    return text not in known and ModuleCall.parse(text).path not in known and not _COMPARISONS.isdisjoint(text)


def _mark_origin(extracted: ExtractedPart, opened: TaggedFile, cut: Cut) -> None:
    """Say in the file where it was cut out, so that parts can be put in relation to the whole again.

    values  by the name of an input or output of the part: the value of the whole file that it is
    """
    text = {
        "file": opened.path.name,
        "graph": opened.graph.fingerprint,
        "asked": list(cut.selection.asked),
        "modules": list(map(str, cut.selection.calls)),
        "values": dict(extracted.origins),
    }
    extracted.file.proto.metadata_props.add(key=CUT_KEY, value=json.dumps(text, ensure_ascii=False))


def _describe_ends(values: Sequence[onnx.ValueInfoProto], extracted: ExtractedPart) -> Iterator[End]:
    for value in values:
        if value.name not in extracted.origins:
            continue  # a weight, which is an input as well in old versions of the format
        tensor = value.type.tensor_type
        dims = tuple(dim.dim_value if dim.HasField("dim_value") else dim.dim_param for dim in tensor.shape.dim)
        # Sequences and optionals have no element type of their own: `sequence_type` is all that there is to say.
        other_kind = str(value.type.WhichOneof("value")).removesuffix("_type")
        dtype = type_name(tensor.elem_type) if value.type.HasField("tensor_type") else other_kind
        yield End(value.name, dtype, dims, extracted.origins[value.name])
