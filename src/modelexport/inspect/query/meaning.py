"""Semantics of queries: from an expression to a predicate, a plain function that says of a node whether it is meant.

    op=MatMul & layer=0..3    lambda entry: matches(entry.op_type) and entry.attribution.layer_id in (0, 1, 2, 3)

A field by name has one function in `_BY_NAME`; `expression.py` says how to add a field. How things are written in a
query is defined here too: modules with their calls (`block#2`), operators with a domain
(`com.microsoft::Attention`), evidence with its source (`scope:dynamo`).

Every predicate asks the owners of a node, and one owner that fits is enough: a fused node is an answer to each module
whose work it does. So `!module=a` leaves out nodes that a shares with others.

`param=` asks for the nodes that read a parameter. Exporters transpose weights and give them names of their own, so a
stored value is a parameter if it has its name; or if it stands in for one: it belongs to the module that holds the
parameter, it has as many elements, and no other parameter there that is missing under its name has. A query may be
asked of a record with its edges alone, without the graph; where the graph is at hand, `graph/parameters.py` knows more.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from modelexport.graph.index import KEY_SEPARATOR
from modelexport.inspect.query.expression import And, Expression, Glob, Not, Operator, Or, QueryField, Spans, Term
from modelexport.record.hierarchy import Hierarchy, Module, ModuleCall, TensorInfo, join
from modelexport.record.lineage import descent_of
from modelexport.record.provenance import Confidence, Edges, NodeEntry, Provenance

DOMAIN_MARK = "::"
EVIDENCE_MARK = ":"
_ONNX_DOMAIN = "ai.onnx"


@dataclass(frozen=True)
class ModulePattern:
    """A pattern for modules by any of their names; with `#2` at the end, for the third call of these alone."""

    matches: Callable[[str], bool]
    matches_called: Callable[[str], bool]
    index: int

    @classmethod
    def of(cls, glob: Glob, hierarchy: Hierarchy) -> ModulePattern:
        called = ModuleCall.parse(glob.text)
        # `#` may also be part of a name: with a number, the text is tried as both.
        numbered = called.path != glob.text
        matches_called = _by_any_name(Glob(called.path), hierarchy) if numbered else lambda _: False
        return cls(_by_any_name(glob, hierarchy), matches_called, called.index)

    def fits(self, call: ModuleCall) -> bool:
        """`block` fits every call of block, `block#2` its third one."""
        return self.matches(call.path) or (call.index == self.index and self.matches_called(call.path))

    def fits_module(self, path: str) -> bool:
        """As `fits`, whether or not the module was called that often."""
        return self.matches(path) or self.matches_called(path)


def _by_any_name(glob: Glob, hierarchy: Hierarchy) -> Callable[[str], bool]:
    """A module that hangs in the model at two places answers to both paths, whichever of them the record has."""
    matches = glob.matcher(".")

    @cache
    def fits(path: str) -> bool:
        module = hierarchy.modules.get(hierarchy.canonical.get(path, path))
        names = () if module is None else (module.path, *module.aliases)
        return any(map(matches, (path, *names)))

    return fits


def written_op(entry: NodeEntry, edges: Edges) -> str:
    """`com.microsoft::Attention`. Records hold the domains of those operators only that are not ONNX's own."""
    return f"{edges.domains.get(entry.key, _ONNX_DOMAIN)}{DOMAIN_MARK}{entry.op_type}"


Names = tuple[str, ...]


def parameter_names(provenance: Provenance) -> Mapping[str, Names]:
    """By value: its own name, and every name of the parameter that it is. Values that are no parameter are left out."""
    edges, groups = provenance.known_edges(), _name_groups(provenance.hierarchy)
    names: dict[str, Names] = {value: (value, *groups.get(value, ())) for value in edges.initializers}
    for value in edges.producers:
        plain = value.rpartition(KEY_SEPARATOR)[2]
        if plain in groups:  # a copy of a weight under the name of another
            names[value] = (plain, *groups[plain])
    for value, name in _stand_ins(provenance):
        names[value] = (value, *groups[name])
    return names


def _name_groups(hierarchy: Hierarchy) -> Mapping[str, Names]:
    """Every name of a parameter or buffer, mapped to all names of it."""
    groups: dict[str, Names] = {}
    for module in hierarchy.modules.values():
        for tensor in module.tensors:
            names = (*_full_names(module, tensor), *tensor.tied)
            groups.update(dict.fromkeys(_full_names(module, tensor), names))
    return groups


def _full_names(module: Module, tensor: TensorInfo) -> Iterator[str]:
    """`encoder.weight`, and the same under every other path of the module."""
    return (join(path, tensor.name) for path in (module.path, *module.aliases))


def _stand_ins(provenance: Provenance) -> Iterator[tuple[str, str]]:
    """Stored values without a name of the model, each with the one parameter that it can be."""
    hierarchy, sizes = provenance.hierarchy, provenance.known_edges().initializers
    for value, attribution in provenance.initializers.items():
        if value in hierarchy.tensor_owners or value not in sizes:
            continue
        for path in {owner.path for owner in attribution.owners}:
            module = hierarchy.modules.get(hierarchy.canonical.get(path, path))
            if module is None:
                continue
            # A parameter that is in the file under a name of its own is not this one.
            missing = [tensor for tensor in module.parameters if sizes.keys().isdisjoint(_full_names(module, tensor))]
            alike = [tensor.name for tensor in missing if tensor.size == sizes[value]]
            if len(alike) == 1:
                yield value, join(module.path, alike[0])


Predicate = Callable[[NodeEntry], bool]

_COMPARISONS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.LESS: operator.lt,
    Operator.AT_MOST: operator.le,
    Operator.MORE: operator.gt,
    Operator.AT_LEAST: operator.ge,
}


def predicate_of(expression: Expression, provenance: Provenance) -> Predicate:
    """Patterns are prepared once, here; the predicate itself is called for every node."""
    match expression:
        case Term(operator=Operator.IS_NOT):
            fits = _term(expression, provenance)
            return lambda entry: not fits(entry)
        case Term():
            return _term(expression, provenance)
        case Not(inner):
            holds = predicate_of(inner, provenance)
            return lambda entry: not holds(entry)
        case And(parts):
            needed = [predicate_of(part, provenance) for part in parts]
            return lambda entry: all(holds(entry) for holds in needed)
        case Or(parts):
            enough = [predicate_of(part, provenance) for part in parts]
            return lambda entry: any(holds(entry) for holds in enough)


def _term(term: Term, provenance: Provenance) -> Predicate:
    """What the term compares with; `!=` is left to the caller, and is `=` here."""
    compare: Callable[[Any, Any], bool] = _COMPARISONS.get(term.operator, operator.eq)
    match term.value:
        case Glob():
            return _BY_NAME[term.field](term.value, provenance)
        case Confidence() as level:
            return lambda entry: compare(entry.attribution.confidence, level)
        case Spans() as spans:
            # `layer=0..3` is a set; `layer<4` compares with one number.
            is_set, limit = term.operator not in _COMPARISONS, spans.single
            fits = spans.__contains__ if is_set else lambda number: compare(number, limit)
            if term.field is QueryField.CALL:
                return lambda entry: any(fits(owner.index) for owner in entry.attribution.owners)
            # A node outside of all layers is in none, also not in one before the fourth.
            return lambda entry: (layer := entry.attribution.layer_id) is not None and fits(layer)


def _by_module(glob: Glob, provenance: Provenance) -> Predicate:
    """By any path of the module, and with a number by its call."""
    fits = ModulePattern.of(glob, provenance.hierarchy).fits
    return lambda entry: any(fits(owner) for owner in entry.attribution.owners)


def _by_tag(glob: Glob, provenance: Provenance) -> Predicate:
    """The tag of an owner, or of the call around all owners, which is what is written on the node."""
    matches = glob.matcher("/")
    tags = provenance.tags

    @cache
    def tagged(path: str) -> bool:
        tag = tags.tag(path)
        return bool(tag) and matches(tag)

    def fits(entry: NodeEntry) -> bool:
        attribution = entry.attribution
        around = () if attribution.ancestor is None else (attribution.ancestor,)
        return any(tagged(call.path) for call in (*around, *attribution.owners))

    return fits


def _by_class(glob: Glob, provenance: Provenance) -> Predicate:
    """That of an owner itself, under any of the paths that the module has."""
    matches, hierarchy = glob.matcher(), provenance.hierarchy

    @cache
    def of_class(path: str) -> bool:
        module = hierarchy.modules.get(hierarchy.canonical.get(path, path))
        return module is not None and matches(module.class_name)

    return lambda entry: any(of_class(owner.path) for owner in entry.attribution.owners)


def _by_class_around(glob: Glob, provenance: Provenance) -> Predicate:
    """`within=BertLayer`: the class of an owner, or of any module that was running when the owner was called."""
    matches, hierarchy = glob.matcher(), provenance.hierarchy

    @cache
    def is_within(owner: ModuleCall) -> bool:
        around = (hierarchy.modules.get(call.path) for call in hierarchy.stack(owner))
        return any(module is not None and matches(module.class_name) for module in around)

    return lambda entry: any(map(is_within, entry.attribution.owners))


def _by_role(glob: Glob, _: Provenance) -> Predicate:
    """`role=attention` is the role alone; `role=attention.**` all that begin with it."""
    matches = cache(glob.matcher("."))
    return lambda entry: bool(entry.attribution.role) and matches(entry.attribution.role)


def _by_op(glob: Glob, provenance: Provenance) -> Predicate:
    """`op=Conv` in any domain; with a domain, in that one."""
    matches = cache(glob.matcher())
    if DOMAIN_MARK not in glob.text:
        return lambda entry: matches(entry.op_type)
    edges = provenance.known_edges()
    return lambda entry: matches(written_op(entry, edges))


def _by_evidence(glob: Glob, _: Provenance) -> Predicate:
    """`evidence=scope`, or with the source: `evidence=scope:dynamo`."""
    kind, mark, source = glob.text.partition(EVIDENCE_MARK)
    of_kind, from_source = Glob(kind).matcher(), Glob(source if mark else "*").matcher()
    return lambda entry: any(of_kind(item.kind) and from_source(item.source) for item in entry.attribution.evidence)


def _by_relation(glob: Glob, _: Provenance) -> Predicate:
    """How a node came out of the graph before, in a file that a tool made: `relation=fused`."""
    matches = cache(glob.matcher())

    def fits(entry: NodeEntry) -> bool:
        descent = descent_of(entry.attribution)
        return descent is not None and matches(descent.relation)

    return fits


def _by_param(glob: Glob, provenance: Provenance) -> Predicate:
    """All nodes that read the parameter, under any of its names."""
    edges, matches = provenance.known_edges(), glob.matcher(".")
    values = [value for value, names in parameter_names(provenance).items() if any(map(matches, names))]
    keys = {key for value in values for key in edges.consumers.get(value, ())}
    return lambda entry: entry.key in keys


def _by_tensor(glob: Glob, provenance: Provenance) -> Predicate:
    """The nodes that make or read a value."""
    edges, matches = provenance.known_edges(), glob.matcher()
    keys = {key for value in edges.values if matches(value) for key in edges.around(value)}
    return lambda entry: entry.key in keys


_BY_NAME: Mapping[QueryField, Callable[[Glob, Provenance], Predicate]] = {
    QueryField.MODULE: _by_module,
    QueryField.TAG: _by_tag,
    QueryField.CLASS: _by_class,
    QueryField.WITHIN: _by_class_around,
    QueryField.ROLE: _by_role,
    QueryField.OP: _by_op,
    QueryField.EVIDENCE: _by_evidence,
    QueryField.RELATION: _by_relation,
    QueryField.PARAM: _by_param,
    QueryField.TENSOR: _by_tensor,
}
