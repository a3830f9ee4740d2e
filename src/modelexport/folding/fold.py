"""Folding a model whose record says which module its nodes belong to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import onnx

from modelexport.errors import UnknownName, UserError
from modelexport.folding.atoms import atoms_of
from modelexport.folding.attributing import folded_record
from modelexport.folding.building import build
from modelexport.folding.plan import Plan, plan_folding
from modelexport.folding.recipe import Recipe
from modelexport.folding.recording import recorded
from modelexport.graph.folded import ensure_flat
from modelexport.graph.index import Graph, index_model, walk_nodes
from modelexport.record.folding import FoldedFunction, Folding, Unfolded
from modelexport.record.provenance import Provenance


@dataclass(frozen=True, eq=False)
class Folded:
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
    recipe: Recipe | None


def fold_model(
    model: onnx.ModelProto, provenance: Provenance, classes: Collection[str], subject: str, beside: str = ""
) -> Folded:
    """Modules as functions; `model` is left as it is.

    subject  what the model is called in messages
    beside   the packed record of a model that does not carry it
    """
    ensure_flat(model, subject)
    _ensure_known(provenance, classes)
    plan = plan_folding(atoms_of(model.graph.node), (value.name for value in model.graph.output), provenance, classes)
    _ensure_folded(plan, provenance, classes)
    built = build(model, plan)
    folded = index_model(built.model)
    folding = _folding(plan, built.names, sum(1 for _ in walk_nodes(model)), len(folded.nodes))
    if not plan.functions:
        return Folded(built.model, folded, provenance, folding, frozenset(), None)
    record, keys = folded_record(provenance, plan, built.names, built.model, folded.fingerprint)
    recipe = recorded(model, built.model, plan, folded.fingerprint, beside)
    return Folded(built.model, folded, record, folding, keys, recipe)


def _ensure_known(provenance: Provenance, classes: Collection[str]) -> None:
    hierarchy = provenance.hierarchy
    called = {site.call.path for site in hierarchy.calls}
    known = list(dict.fromkeys(module.class_name for path, module in hierarchy.modules.items() if path in called))
    for name in classes:
        if name not in known:
            raise UnknownName("class", name, known)


def _ensure_folded(plan: Plan, provenance: Provenance, classes: Collection[str]) -> None:
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


def _folding(plan: Plan, names: Mapping[int, str], before: int, after: int) -> Folding:
    return Folding(
        before,
        after,
        tuple(
            FoldedFunction(
                names[one.number],
                one.class_name,
                len(one.calls),
                len(one.calls[0].items),
                tuple(str(region.call) for region in one.calls),
            )
            for one in plan.functions
        ),
        tuple(
            Unfolded(name, count, reason) for name, found in plan.unfolded.items() for reason, count in found.items()
        ),
        dict(plan.outside),
    )
