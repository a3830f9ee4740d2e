"""From a folded model and its recipe to the flat one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import onnx

from modelexport.folding.atoms import tensor_of
from modelexport.folding.bodies import rename_captured
from modelexport.folding.recipe import ABSENT, Loose, Recipe
from modelexport.graph.embed import PREFIX
from modelexport.graph.folded import FOLDED_DOMAIN


def restored(model: onnx.ModelProto, recipe: Recipe) -> onnx.ModelProto:
    """The flat model. Raises ValueError or LookupError if the recipe is not for this model."""
    return assembled(model, recipe, flat_nodes(model, recipe))


def assembled(model: onnx.ModelProto, recipe: Recipe, nodes: Iterable[onnx.NodeProto]) -> onnx.ModelProto:
    """The flat model with these nodes. What others wrote on the model since it was folded stays on it."""
    flat = onnx.ModelProto.FromString(recipe.header)
    metadata = list(_metadata(flat.metadata_props, model.metadata_props))
    del flat.metadata_props[:]
    flat.metadata_props.extend(metadata)
    flat.functions.extend(function for function in model.functions if function.domain != FOLDED_DOMAIN)
    graph = flat.graph
    graph.CopyFrom(model.graph)
    del graph.node[:]
    graph.node.extend(nodes)
    if ends_digest(graph) == recipe.ends:
        types = list(_merged(model.graph.value_info, recipe))
        del graph.value_info[:]
        graph.value_info.extend(types)
    return flat


def flat_nodes(model: onnx.ModelProto, recipe: Recipe) -> list[onnx.NodeProto]:
    """The nodes in the order of the flat file."""
    unfolding = _Unfolding(
        {function.name: function for function in model.functions if function.domain == FOLDED_DOMAIN},
        recipe,
        iter(recipe.values),
        iter(recipe.nodes),
    )
    unfolded = list(unfolding.nodes(model.graph.node))
    order = recipe.order or range(len(unfolded))
    places = dict(zip(order, unfolded, strict=True))
    if len(places) != len(unfolded) or (places and (min(places) != 0 or max(places) != len(unfolded) - 1)):
        raise ValueError("two nodes have one place")
    found = [places[place] for place in range(len(places))]
    for place, explicit in recipe.explicit.items():
        found[place] = onnx.NodeProto.FromString(explicit)
    return found


@dataclass(eq=False)
class _Unfolding:
    functions: Mapping[str, onnx.FunctionProto]
    recipe: Recipe
    values: Iterator[int]
    loose: Iterator[Loose]
    open: set[str] = field(default_factory=set)

    def nodes(self, nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            if node.domain == FOLDED_DOMAIN:
                yield from self._called(node.op_type, list(node.input), list(node.output))
            else:
                yield node

    def _called(self, name: str, inputs: list[str], outputs: list[str]) -> Iterator[onnx.NodeProto]:
        function = self.functions[name]
        if name in self.open:
            raise ValueError(f"the function {name!r} calls itself")
        self.open.add(name)
        names = dict(zip(function.input, inputs, strict=True))
        names.update(zip(function.output, outputs, strict=True))
        for node in function.node:
            for output in node.output:
                if output and output not in names:
                    names[output] = self.recipe.texts[next(self.values)]
            given = [names[one] if one else one for one in node.input]
            made = [names[one] if one else one for one in node.output]
            if node.domain == FOLDED_DOMAIN:
                yield from self._called(node.op_type, given, made)
            else:
                yield self._node(node, given, made, names)
        self.open.discard(name)

    def _node(
        self, node: onnx.NodeProto, inputs: list[str], outputs: list[str], names: Mapping[str, str]
    ) -> onnx.NodeProto:
        made = onnx.NodeProto()
        made.CopyFrom(node)
        made.input[:], made.output[:] = inputs, outputs
        rename_captured(made, lambda name: names[name])
        loose, texts = next(self.loose), self.recipe.texts
        for field_name, number in (("name", loose.name), ("doc_string", loose.doc_string)):
            made.ClearField(field_name)
            if number != ABSENT:
                setattr(made, field_name, texts[number])
        tensor = tensor_of(made)
        if tensor is not None:
            tensor.ClearField("name")
            if loose.tensor != ABSENT:
                tensor.name = texts[loose.tensor]
        del made.metadata_props[:]
        for key, value in loose.metadata:
            made.metadata_props.add(key=texts[key], value=texts[value])
        return made


def has_same_opsets(model: onnx.ModelProto, recipe: Recipe) -> bool:
    """Whether operators still mean what they meant when the model was folded."""
    before, now = (
        {entry.domain: entry.version for entry in one.opset_import if entry.domain != FOLDED_DOMAIN}
        for one in (onnx.ModelProto.FromString(recipe.header), model)
    )
    return before == now


def _metadata(
    flat: Iterable[onnx.StringStringEntryProto], folded: Iterable[onnx.StringStringEntryProto]
) -> Iterator[onnx.StringStringEntryProto]:
    """Our own entries of the flat model, and those of others as they are in the folded one, in their old order."""
    theirs = {entry.key: entry for entry in folded if not entry.key.startswith(PREFIX)}
    for entry in flat:
        if entry.key.startswith(PREFIX):
            yield entry
        elif entry.key in theirs:
            yield theirs.pop(entry.key)
    yield from theirs.values()


def _merged(shown: Iterable[onnx.ValueInfoProto], recipe: Recipe) -> Iterator[onnx.ValueInfoProto]:
    """The types that the folded graph has, and those of the recipe where they belong.

    Many tools take types away, or add some: then those of the recipe are still true, and only their places are not.
    """
    waiting = iter(shown)
    place = 0
    for one in recipe.types:
        yield from islice(waiting, one.place - place)
        value = onnx.ValueInfoProto.FromString(recipe.rests[one.rest])
        value.name = recipe.texts[one.name]
        yield value
        place = one.place + 1
    yield from waiting


def digest(graph: onnx.GraphProto) -> str:
    """What a graph computes and what its nodes and values are called, but no shapes and no data of initializers."""
    found = hashlib.sha256()
    for part in (*graph.node, *graph.quantization_annotation):
        found.update(part.SerializeToString(deterministic=True))
    ends = [[(value.name, _kind(value.type)) for value in values] for values in (graph.input, graph.output)]
    headers = [(tensor.name, tensor.data_type, list(tensor.dims)) for tensor in graph.initializer]
    found.update(repr((ends, headers)).encode())
    return found.hexdigest()


def _kind(given: onnx.TypeProto) -> bytes:
    """A type without the shape, which a tool may have fixed or opened."""
    if not given.HasField("tensor_type"):
        return given.SerializeToString(deterministic=True)
    return str(given.tensor_type.elem_type).encode()


def ends_digest(graph: onnx.GraphProto) -> str:
    """What goes in and comes out, with all shapes: as long as it is the same, so are those inside."""
    found = hashlib.sha256()
    for value in (*graph.input, *graph.output):
        found.update(value.SerializeToString(deterministic=True))
    return found.hexdigest()
