"""Writing down, while a graph is folded, what it takes to make it flat again."""

from __future__ import annotations

import onnx

from modelexport.errors import ModelExportError
from modelexport.folding.atoms import Atom, tensor_of
from modelexport.folding.patterns import Region
from modelexport.folding.plan import Plan, hidden_values
from modelexport.folding.recipe import ABSENT, Loose, Recipe, Type
from modelexport.folding.restoring import assembled, digest, ends_digest, flat_nodes


def recorded(flat: onnx.ModelProto, folded: onnx.ModelProto, plan: Plan, fingerprint: str, record: str) -> Recipe:
    """The recipe for `folded`, which was made of `flat`. That it gives the same graph is tried out.

    fingerprint  of the folded graph
    record       packed; for a model that does not have it inside
    """
    recipe = _Writer(flat, plan).recipe(fingerprint, record)
    nodes = flat_nodes(folded, recipe)
    for place, (before, after) in enumerate(zip(flat.graph.node, nodes, strict=True)):
        if before.SerializeToString(deterministic=True) != after.SerializeToString(deterministic=True):
            recipe.explicit[place] = before.SerializeToString(deterministic=True)
            nodes[place] = before
    restored = assembled(folded, recipe, nodes).graph
    if digest(restored) != recipe.flat or list(restored.value_info) != list(flat.graph.value_info):
        raise ModelExportError("the folded graph does not unfold to the one that it was made of; nothing was written")
    return recipe


class _Writer:
    def __init__(self, flat: onnx.ModelProto, plan: Plan) -> None:
        self._flat = flat
        self._plan = plan
        self._texts: dict[str, int] = {}
        self._values: list[int] = []
        self._nodes: list[Loose] = []
        self._order: list[int] = []

    def recipe(self, fingerprint: str, record: str) -> Recipe:
        regions = self._plan.regions
        for item in self._plan.items:
            atom = regions.atom(item)
            if atom is not None:
                self._order.append(atom.place)
            else:
                self._add(regions.called[item])
        types, rests = self._types()
        return Recipe(
            graph=fingerprint,
            flat=digest(self._flat.graph),
            ends=ends_digest(self._flat.graph),
            header=_header(self._flat),
            record=record,
            texts=tuple(self._texts),
            values=tuple(self._values),
            nodes=tuple(self._nodes),
            order=() if self._order == list(range(len(self._order))) else tuple(self._order),
            types=types,
            rests=rests,
        )

    def _add(self, region: Region) -> None:
        """What belongs to a call, in the order in which it is unfolded."""
        regions, function = self._plan.regions, region.function
        assert function is not None
        known = set(function.outputs)
        for number, item in enumerate(region.items):
            for slot, name in enumerate(regions.makes(item)):
                if name and (number, slot) not in known:
                    self._values.append(self._text(name))
            atom = regions.atom(item)
            if atom is None:
                self._add(regions.called[item])
            else:
                self._order.append(atom.place)
                self._nodes.append(self._loose(atom))

    def _loose(self, atom: Atom) -> Loose:
        node = atom.proto
        tensor = tensor_of(node)
        return Loose(
            self._text(node.name) if node.HasField("name") else ABSENT,
            self._text(node.doc_string) if node.HasField("doc_string") else ABSENT,
            self._text(tensor.name) if tensor is not None and tensor.HasField("name") else ABSENT,
            tuple((self._text(entry.key), self._text(entry.value)) for entry in node.metadata_props),
        )

    def _text(self, text: str) -> int:
        return self._texts.setdefault(text, len(self._texts))

    def _types(self) -> tuple[tuple[Type, ...], tuple[bytes, ...]]:
        hidden = set(hidden_values(self._plan))
        rests: dict[bytes, int] = {}
        found = []
        for place, value in enumerate(self._flat.graph.value_info):
            if value.name in hidden:
                rest = onnx.ValueInfoProto()
                rest.CopyFrom(value)
                rest.ClearField("name")
                number = rests.setdefault(rest.SerializeToString(deterministic=True), len(rests))
                found.append(Type(place, self._text(value.name), number))
        return tuple(found), tuple(rests)


def _header(model: onnx.ModelProto) -> bytes:
    header = onnx.ModelProto()
    header.CopyFrom(model)
    header.ClearField("graph")
    header.ClearField("functions")
    return header.SerializeToString(deterministic=True)
