"""From an expression to a plain function that says of a node whether it is meant."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

from modelexport.queries.expression import And, Expression, Field, Not, Operator, Or, Term
from modelexport.queries.naming import DOMAIN_MARK, EVIDENCE_MARK, ModulePattern, written_op
from modelexport.queries.parameters import parameter_names
from modelexport.queries.values import Glob, Spans
from modelexport.record.evidence import Confidence
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.lineage import descent_of
from modelexport.record.provenance import NodeEntry, Provenance

Predicate = Callable[[NodeEntry], bool]

_COMPARISONS: Mapping[Operator, Callable[[Any, Any], bool]] = {
    Operator.LESS: operator.lt,
    Operator.AT_MOST: operator.le,
    Operator.MORE: operator.gt,
    Operator.AT_LEAST: operator.ge,
}


def predicate_of(expression: Expression, provenance: Provenance) -> Predicate:
    match expression:
        case Term(operator=Operator.IS_NOT):
            return negation(_term(expression, provenance))
        case Term():
            return _term(expression, provenance)
        case Not(inner):
            return negation(predicate_of(inner, provenance))
        case And(parts):
            return all_of([predicate_of(part, provenance) for part in parts])
        case Or(parts):
            return any_of([predicate_of(part, provenance) for part in parts])


def all_of(predicates: Iterable[Predicate]) -> Predicate:
    wanted = tuple(predicates)
    return lambda entry: all(holds(entry) for holds in wanted)


def any_of(predicates: Iterable[Predicate]) -> Predicate:
    wanted = tuple(predicates)
    return lambda entry: any(holds(entry) for holds in wanted)


def negation(predicate: Predicate) -> Predicate:
    return lambda entry: not predicate(entry)


def _term(term: Term, provenance: Provenance) -> Predicate:
    match term.value:
        case Glob():
            return _BY_NAME[term.field](term.value, provenance)
        case Spans():
            return _by_number(term.field, _number_test(term.operator, term.value))
        case Confidence():
            return _by_confidence(term.operator, term.value)


def _number_test(sign: Operator, spans: Spans) -> Callable[[int], bool]:
    if sign not in _COMPARISONS:
        return spans.__contains__
    compare, limit = _COMPARISONS[sign], spans.single
    return lambda number: compare(number, limit)


def _by_number(field: Field, test: Callable[[int], bool]) -> Predicate:
    if field is Field.CALL:
        return lambda entry: any(test(owner.index) for owner in entry.attribution.owners)

    def in_layer(entry: NodeEntry) -> bool:
        layer = entry.attribution.layer_id
        return layer is not None and test(layer)

    return in_layer


def _by_confidence(sign: Operator, level: Confidence) -> Predicate:
    compare: Callable[[Any, Any], bool] = _COMPARISONS.get(sign, operator.eq)
    return lambda entry: compare(entry.attribution.confidence, level)


def _by_module(glob: Glob, provenance: Provenance) -> Predicate:
    fits = ModulePattern.of(glob, provenance.hierarchy).fits
    return lambda entry: any(fits(owner) for owner in entry.attribution.owners)


def _by_tag(glob: Glob, provenance: Provenance) -> Predicate:
    matches = glob.matcher("/")
    tags = provenance.tags

    @cache
    def tagged(path: str) -> bool:
        tag = tags.tag(path)
        return bool(tag) and matches(tag)

    def fits(entry: NodeEntry) -> bool:
        found = entry.attribution
        around = () if found.ancestor is None else (found.ancestor,)
        return any(tagged(call.path) for call in (*around, *found.owners))

    return fits


def _by_class(glob: Glob, provenance: Provenance) -> Predicate:
    matches, hierarchy = glob.matcher(), provenance.hierarchy

    @cache
    def of_class(path: str) -> bool:
        module = hierarchy.modules.get(hierarchy.canonical.get(path, path))
        return module is not None and matches(module.class_name)

    return lambda entry: any(of_class(owner.path) for owner in entry.attribution.owners)


def _by_class_around(glob: Glob, provenance: Provenance) -> Predicate:
    matches, hierarchy = glob.matcher(), provenance.hierarchy

    @cache
    def is_within(owner: ModuleCall) -> bool:
        around = (hierarchy.modules.get(call.path) for call in hierarchy.stack(owner))
        return any(module is not None and matches(module.class_name) for module in around)

    return lambda entry: any(map(is_within, entry.attribution.owners))


def _by_role(glob: Glob, _: Provenance) -> Predicate:
    matches = cache(glob.matcher("."))
    return lambda entry: bool(entry.attribution.role) and matches(entry.attribution.role)


def _by_op(glob: Glob, provenance: Provenance) -> Predicate:
    matches = cache(glob.matcher())
    if DOMAIN_MARK not in glob.text:
        return lambda entry: matches(entry.op_type)
    edges = provenance.known_edges()
    return lambda entry: matches(written_op(entry, edges))


def _by_evidence(glob: Glob, _: Provenance) -> Predicate:
    kind, mark, source = glob.text.partition(EVIDENCE_MARK)
    of_kind, from_source = Glob(kind).matcher(), Glob(source if mark else "*").matcher()
    return lambda entry: any(of_kind(item.kind) and from_source(item.source) for item in entry.attribution.evidence)


def _by_relation(glob: Glob, _: Provenance) -> Predicate:
    matches = cache(glob.matcher())

    def fits(entry: NodeEntry) -> bool:
        found = descent_of(entry.attribution)
        return found is not None and matches(found.relation)

    return fits


def _by_param(glob: Glob, provenance: Provenance) -> Predicate:
    edges, matches = provenance.known_edges(), glob.matcher(".")
    values = [value for value, names in parameter_names(provenance).items() if any(map(matches, names))]
    keys = {key for value in values for key in edges.consumers.get(value, ())}
    return lambda entry: entry.key in keys


def _by_tensor(glob: Glob, provenance: Provenance) -> Predicate:
    edges, matches = provenance.known_edges(), glob.matcher()
    keys = {key for value in edges.values if matches(value) for key in edges.around(value)}
    return lambda entry: entry.key in keys


_BY_NAME: Mapping[Field, Callable[[Glob, Provenance], Predicate]] = {
    Field.MODULE: _by_module,
    Field.TAG: _by_tag,
    Field.CLASS: _by_class,
    Field.WITHIN: _by_class_around,
    Field.ROLE: _by_role,
    Field.OP: _by_op,
    Field.EVIDENCE: _by_evidence,
    Field.RELATION: _by_relation,
    Field.PARAM: _by_param,
    Field.TENSOR: _by_tensor,
}
