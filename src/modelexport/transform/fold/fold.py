"""Fold and restore: a model whose repeated modules become functions, and the way back.

    fold_model      plan → folded model → record → recipe; that the recipe gives the same graph is tried out at once
    restore_model   read the recipe → unfold → compare digests; a model that was changed since is inlined instead

The law that both must keep: fold, then flatten, gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx
from google.protobuf.message import DecodeError

from modelexport.errors import ModelExportError, RecordUnreadable, UnknownName, UserError
from modelexport.graph.file.metadata import ensure_flat, is_folded
from modelexport.graph.index import Graph, index_model, walk_nodes
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
from modelexport.transform.fold.working_graph import FoldNode, constant_tensor, list_fold_nodes


def write_down_recipe(
    flat: onnx.ModelProto, folded: onnx.ModelProto, plan: FoldingPlan, fingerprint: str, record: str
) -> FlatteningRecipe:
    """The recipe for `folded`, which was made of `flat`. That it gives the same graph is tried out.

    fingerprint  of the folded graph
    record       packed; for a model that does not have it inside
    """
    recipe = _RecipeWriter(flat, plan).recipe(fingerprint, record)
    nodes = unfold_nodes(folded, recipe)
    for index, (before, after) in enumerate(zip(flat.graph.node, nodes, strict=True)):
        if before.SerializeToString(deterministic=True) != after.SerializeToString(deterministic=True):
            recipe.explicit[index] = before.SerializeToString(deterministic=True)
            nodes[index] = before
    restored = assemble_flat_model(folded, recipe, nodes).graph
    if digest_graph(restored) != recipe.flat or list(restored.value_info) != list(flat.graph.value_info):
        raise ModelExportError("the folded graph does not unfold to the one that it was made of; nothing was written")
    return recipe


class _RecipeWriter:
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
                self._order.append(fold_node.place)
            else:
                self._add(regions.called[item])
        types, rests = self._types()
        return FlatteningRecipe(
            graph=fingerprint,
            flat=digest_graph(self._flat.graph),
            ends=digest_io(self._flat.graph),
            header=_header(self._flat),
            record=record,
            texts=tuple(self._texts),
            values=tuple(self._values),
            nodes=tuple(self._nodes),
            order=() if self._order == list(range(len(self._order))) else tuple(self._order),
            types=types,
            rests=rests,
        )

    def _add(self, region: FoldRegion) -> None:
        """What belongs to a call, in the order in which it is unfolded."""
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
                self._order.append(fold_node.place)
                self._nodes.append(self._loose(fold_node))

    def _loose(self, fold_node: FoldNode) -> NodeLabels:
        node = fold_node.proto
        tensor = constant_tensor(node)
        return NodeLabels(
            self._text(node.name) if node.HasField("name") else ABSENT,
            self._text(node.doc_string) if node.HasField("doc_string") else ABSENT,
            self._text(tensor.name) if tensor is not None and tensor.HasField("name") else ABSENT,
            tuple((self._text(entry.key), self._text(entry.value)) for entry in node.metadata_props),
        )

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _types(self) -> tuple[tuple[HiddenType, ...], tuple[bytes, ...]]:
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


def _header(model: onnx.ModelProto) -> bytes:
    header = onnx.ModelProto()
    header.CopyFrom(model)
    header.ClearField("graph")
    header.ClearField("functions")
    return header.SerializeToString(deterministic=True)


_CHANGED = "the graph was changed after it was folded"
_GONE = "what folding wrote down is no longer in the file"


@dataclass(frozen=True, eq=False)
class RestoredModel:
    """
    model  the flat model; None if it cannot be had exactly
    note   why not
    record the packed record that was not in the flat model, but beside it
    """

    model: onnx.ModelProto | None
    record: str = ""
    note: str = ""


def restore_model(model: onnx.ModelProto) -> RestoredModel:
    """The model that was folded, if this one is still what folding made of it."""
    if not is_folded(model):
        return RestoredModel(None)
    try:
        recipe = read_recipe(model)
    except RecordUnreadable as error:
        return RestoredModel(None, note=error.message)
    if recipe is None:
        return RestoredModel(None, note=_GONE)
    if recipe.graph != index_model(model).fingerprint:
        return RestoredModel(None, note=_CHANGED)
    return _try_recipe(model, recipe)


def _try_recipe(model: onnx.ModelProto, recipe: FlatteningRecipe) -> RestoredModel:
    try:
        flat = apply_recipe(model, recipe)
    except (ValueError, LookupError, TypeError, StopIteration, RuntimeError, DecodeError) as error:
        return RestoredModel(None, note=f"what folding wrote down does not fit the file: {error}")
    if digest_graph(flat.graph) != recipe.flat or not has_same_opsets(model, recipe):
        return RestoredModel(None, note=_CHANGED)
    return RestoredModel(flat, recipe.record)


@dataclass(frozen=True, eq=False)
class FoldedModel:
    """
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
    hierarchy = provenance.hierarchy
    called = {site.call.path for site in hierarchy.calls}
    known = list(dict.fromkeys(module.class_name for path, module in hierarchy.modules.items() if path in called))
    for name in classes:
        if name not in known:
            raise UnknownName("class", name, known)


def _ensure_folded(plan: FoldingPlan, provenance: Provenance, classes: Collection[str]) -> None:
    """What is asked for by name must be there afterwards, or it is said why not."""
    folded = {function.class_name for function in plan.functions}
    for name in classes:
        if name not in folded:
            reasons = list(plan.unfolded.get(name, ()))
            root = provenance.hierarchy.modules.get("")
            if root is not None and root.class_name == name:
                reasons = ["it is the model itself"]
            why = "; ".join(reasons) or "it has no nodes in the main graph"
            raise UserError(
                f"no {name} can become a function: {why}",
                "`modelexport analyze` shows which nodes it has. Leave it out, or fold another class.",
            )


def _summarize_plan(plan: FoldingPlan, names: Mapping[int, str], before: int, after: int) -> Folding:
    return Folding(
        before,
        after,
        tuple(
            FoldedFunction(
                names[function.number],
                function.class_name,
                len(function.calls),
                len(function.calls[0].items),
                tuple(str(region.call) for region in function.calls),
            )
            for function in plan.functions
        ),
        tuple(
            Unfolded(name, count, reason)
            for name, reasons in plan.unfolded.items()
            for reason, count in reasons.items()
        ),
        dict(plan.outside),
    )
