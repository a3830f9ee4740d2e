"""Fold and restore: a model whose repeated modules become functions, and the way back.

    fold_model      plan → folded model → record → recipe; that the recipe gives the same graph is tried out at once
    restore_model   read the recipe → unfold → compare digests; a model that was changed since is inlined instead

The law that both must keep: fold, then flatten, gives the same bytes.

    24 Layer modules of 30 nodes   ─fold─►   24 calls of one function of 30 nodes   ─flatten─►   the file as it was
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError

from modelexport.errors import ModelExportError, RecordUnreadable, UnknownName, UserError
from modelexport.graph.file.metadata import ensure_flat, is_folded
from modelexport.graph.index import Graph, index_model, walk_nodes
from modelexport.record.hierarchy import ROOT
from modelexport.record.provenance import Provenance
from modelexport.record.results.files import FoldedFunction, Folding, Unfolded
from modelexport.transform.fold.building import build_folded_model, build_folded_record
from modelexport.transform.fold.patterns import FoldRegion
from modelexport.transform.fold.plan import FoldingPlan, list_hidden_values, plan_folding
from modelexport.transform.fold.recipe import (
    ABSENT,
    FlatteningRecipe,
    HiddenType,
    NodeLabels,
    apply_recipe,
    assemble_flat_model,
    digest_graph,
    digest_io,
    has_same_opsets,
    read_recipe,
    unfold_nodes,
)
from modelexport.transform.fold.working_graph import constant_tensor, list_fold_nodes


def write_down_recipe(
    flat: onnx.ModelProto, folded: onnx.ModelProto, plan: FoldingPlan, fingerprint: str, record: str
) -> FlatteningRecipe:
    """The recipe for `folded`, which was made of `flat`. That it gives the same graph is tried out.

    fingerprint  of the folded graph
    record       packed; for a model that does not have it inside
    """
    recipe = _RecipeWriter(flat, plan).recipe(fingerprint, record)
    nodes = unfold_nodes(folded, recipe)
    # A node that does not come out byte for byte is kept as a whole: the law holds for files of any exporter.
    for index, (before, after) in enumerate(zip(flat.graph.node, nodes, strict=True)):
        wanted = before.SerializeToString(deterministic=True)
        if wanted != after.SerializeToString(deterministic=True):
            recipe.explicit[index] = wanted
            nodes[index] = before
    restored = assemble_flat_model(folded, recipe, nodes).graph
    if digest_graph(restored) != recipe.flat or list(restored.value_info) != list(flat.graph.value_info):
        raise ModelExportError("the folded graph does not unfold to the one that it was made of; nothing was written")
    return recipe


class _RecipeWriter:
    """Collects what calls do not say. Texts are listed once and go by their number: most occur many times."""

    def __init__(self, flat: onnx.ModelProto, plan: FoldingPlan) -> None:
        self._flat = flat
        self._plan = plan
        self._texts: dict[str, int] = {}
        self._values: list[int] = []
        self._nodes: list[NodeLabels] = []
        self._order: list[int] = []

    def recipe(self, fingerprint: str, record: str) -> FlatteningRecipe:
        regions = self._plan.regions
        for item in self._plan.items:
            fold_node = regions.fold_node(item)
            if fold_node is not None:
                self._order.append(fold_node.position)
            else:
                self._add(regions.called[item])
        types, rests = self._types()
        header = onnx.ModelProto()
        header.CopyFrom(self._flat)
        for part in ("graph", "functions"):  # both come back from the folded model
            header.ClearField(part)
        return FlatteningRecipe(
            graph=fingerprint,
            flat=digest_graph(self._flat.graph),
            ends=digest_io(self._flat.graph),
            header=header.SerializeToString(deterministic=True),
            record=record,
            texts=tuple(self._texts),
            values=tuple(self._values),
            nodes=tuple(self._nodes),
            order=() if self._order == sorted(self._order) else tuple(self._order),
            types=types,
            rests=rests,
        )

    def _add(self, region: FoldRegion) -> None:
        regions, function = self._plan.regions, region.function
        assert function is not None
        known = set(function.outputs)
        for number, item in enumerate(region.items):
            for slot, name in enumerate(regions.makes(item)):
                if name and (number, slot) not in known:
                    self._values.append(self._text(name))
            fold_node = regions.fold_node(item)
            if fold_node is None:
                self._add(regions.called[item])
            else:
                self._order.append(fold_node.position)
                self._nodes.append(self._label(fold_node.proto))

    def _label(self, node: onnx.NodeProto) -> NodeLabels:
        tensor = constant_tensor(node)
        # HasField tells a name that is empty from one that is not there: they are different bytes.
        return NodeLabels(
            self._text(node.name) if node.HasField("name") else ABSENT,
            self._text(node.doc_string) if node.HasField("doc_string") else ABSENT,
            self._text(tensor.name) if tensor is not None and tensor.HasField("name") else ABSENT,
            tuple((self._text(entry.key), self._text(entry.value)) for entry in node.metadata_props),
        )

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _types(self) -> tuple[tuple[HiddenType, ...], tuple[bytes, ...]]:
        """Types of values in functions, and all else of them than the name, which is the same for many."""
        hidden = set(list_hidden_values(self._plan))
        rests: dict[bytes, int] = {}
        types = []
        for index, value in enumerate(self._flat.graph.value_info):
            if value.name in hidden:
                rest = onnx.ValueInfoProto()
                rest.CopyFrom(value)
                rest.ClearField("name")
                number = rests.setdefault(rest.SerializeToString(deterministic=True), len(rests))
                types.append(HiddenType(index, self._text(value.name), number))
        return tuple(types), tuple(rests)


_CHANGED = "the graph was changed after it was folded"


@dataclass(frozen=True, eq=False)
class FlatModel:
    """What a folded file gives back.

    model   the flat model; None if it cannot be had exactly
    record  the packed record that was not in the flat model, but beside it
    note    why there is no model
    """

    model: onnx.ModelProto | None
    record: str = ""
    note: str = ""


def restore_model(model: onnx.ModelProto) -> FlatModel:
    """The model that was folded, if this one is still what folding made of it."""
    if not is_folded(model):
        return FlatModel(None)
    try:
        recipe = read_recipe(model)
    except RecordUnreadable as error:
        return FlatModel(None, note=error.message)
    if recipe is None:
        return FlatModel(None, note="what folding wrote down is no longer in the file")
    if recipe.graph != index_model(model).fingerprint:
        return FlatModel(None, note=_CHANGED)
    return _try_recipe(model, recipe)


def _try_recipe(model: onnx.ModelProto, recipe: FlatteningRecipe) -> FlatModel:
    try:
        flat = apply_recipe(model, recipe)
    # A file from elsewhere may claim to be folded and be anything: each of these is what damage can lead to.
    except (ValueError, LookupError, TypeError, StopIteration, RuntimeError, DecodeError) as error:
        return FlatModel(None, note=f"what folding wrote down does not fit the file: {error}")
    # A version converter may leave nodes as they are and still change what they mean.
    if digest_graph(flat.graph) != recipe.flat or not has_same_opsets(model, recipe):
        return FlatModel(None, note=_CHANGED)
    return FlatModel(flat, recipe.record)


@dataclass(frozen=True, eq=False)
class FoldedModel:
    """What folding makes of a file.

    graph   the index of the model
    keys    of the nodes that are in the folded graph and were not in the flat one
    recipe  None if nothing was folded
    """

    model: onnx.ModelProto
    graph: Graph
    provenance: Provenance
    folding: Folding
    keys: frozenset[str]
    recipe: FlatteningRecipe | None


def fold_model(
    model: onnx.ModelProto, provenance: Provenance, classes: Collection[str], subject: str, beside: str = ""
) -> FoldedModel:
    """Modules as functions; `model` is left as it is.

    subject  what the model is called in messages
    beside   the packed record of a model that does not carry it
    """
    ensure_flat(model, subject)
    _ensure_known(provenance, classes)
    plan = plan_folding(
        list_fold_nodes(model.graph.node), (value.name for value in model.graph.output), provenance, classes
    )
    _ensure_folded(plan, provenance, classes)
    built = build_folded_model(model, plan)
    folded = index_model(built.model)
    folding = _summarize_plan(plan, built.names, sum(1 for _ in walk_nodes(model)), len(folded.nodes))
    if not plan.functions:
        return FoldedModel(built.model, folded, provenance, folding, frozenset(), None)
    record, keys = build_folded_record(provenance, plan, built.names, built.model, folded.fingerprint)
    recipe = write_down_recipe(model, built.model, plan, folded.fingerprint, beside)
    return FoldedModel(built.model, folded, record, folding, keys, recipe)


def _ensure_known(provenance: Provenance, classes: Collection[str]) -> None:
    """Classes of modules that were never called have no nodes to fold: they are not offered either."""
    hierarchy = provenance.hierarchy
    called = {site.call.path for site in hierarchy.calls}
    known = dict.fromkeys(module.class_name for path, module in hierarchy.modules.items() if path in called)
    for name in classes:
        if name not in known:
            raise UnknownName("class", name, known)


def _ensure_folded(plan: FoldingPlan, provenance: Provenance, classes: Collection[str]) -> None:
    """What is asked for by name must be there afterwards, or it is said why not."""
    folded = {function.class_name for function in plan.functions}
    for name in classes:
        if name not in folded:
            root = provenance.hierarchy.modules.get(ROOT)
            is_root = root is not None and root.class_name == name
            reasons = ["it is the model itself"] if is_root else plan.unfolded.get(name, ())
            why = "; ".join(reasons) or "it has no nodes in the main graph"
            raise UserError(
                f"no {name} can become a function: {why}",
                "`modelexport analyze` shows which nodes it has. Leave it out, or fold another class.",
            )


def _summarize_plan(plan: FoldingPlan, names: Mapping[int, str], before: int, after: int) -> Folding:
    functions = []
    for function in plan.functions:
        calls = tuple(str(region.call) for region in function.calls)
        size = len(function.calls[0].items)
        functions.append(FoldedFunction(names[function.number], function.class_name, len(calls), size, calls))
    counted = ((name, reason, count) for name, why in plan.unfolded.items() for reason, count in why.items())
    unfolded = tuple(Unfolded(name, count, reason) for name, reason, count in counted)
    return Folding(before, after, tuple(functions), unfolded, dict(plan.outside))
