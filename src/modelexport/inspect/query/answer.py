"""Answers to queries: the nodes that are meant; and where there are none, what stood in the way.

Names in a query must be those of something. A misspelt one would otherwise be an empty answer that looks right:

    op=MatMull                   unknown op 'MatMull'. Did you mean 'MatMul'?
    module=encoder & op=Softmax  no node matches module=encoder itself; module=encoder.** is with everything inside
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from os.path import commonprefix

from modelexport.errors import UnknownName, UserError, similar_names
from modelexport.inspect.query.expression import (
    Expression,
    Glob,
    Operator,
    QueryField,
    Term,
    asserted_terms,
    include_submodules,
    terms_of,
)
from modelexport.inspect.query.meaning import (
    DOMAIN_MARK,
    EVIDENCE_MARK,
    ModulePattern,
    parameter_names,
    predicate_of,
    written_op,
)
from modelexport.inspect.query.parsing import parse_query
from modelexport.record.lineage import Relation
from modelexport.record.provenance import EvidenceKind, NodeEntry, Provenance

# Comparing a misspelt name with every tensor of a large model would take seconds.
_MOST_COMPARED = 500
_CORRECTIONS = 3  # of one step
_SEPARATORS = {QueryField.MODULE: ".", QueryField.TAG: "/", QueryField.ROLE: ".", QueryField.PARAM: "."}


def check_names(expression: Expression, *provenances: Provenance) -> None:
    """Raise for the first name or pattern in a query that is that of nothing at all in this file, or in these."""
    for term in terms_of(expression):
        glob = term.value
        if isinstance(glob, Glob) and not any(_is_known(term.field, glob, provenance) for provenance in provenances):
            raise _unknown(term.field, glob, provenances)


def _is_known(field: QueryField, glob: Glob, provenance: Provenance) -> bool:
    """Whether anything in the file has a name like this, be it a node or not: a module may own no node."""
    if glob.text and not glob.text.strip("*"):
        return True  # anything at all, also where there is nothing
    if field is QueryField.MODULE:
        return any(map(ModulePattern.of(glob, provenance.hierarchy).fits_module, provenance.hierarchy.modules))
    return any(map(glob.matcher(_SEPARATORS.get(field, "")), _NAMES[field](provenance, glob)))


def _unknown(field: QueryField, glob: Glob, provenances: Iterable[Provenance]) -> UserError:
    """With the names that were most likely meant, corrected patterns before whole names."""
    known = chain.from_iterable(_NAMES[field](provenance, glob) for provenance in provenances)
    names = [name for name in dict.fromkeys(known) if name]
    if not names:
        return UserError(f"nothing in this file has a {field.value}, so {field.value}={glob} cannot be answered")
    # By the characters that they begin with in common: paths that are misspelt mostly are so near their end.
    nearest = heapq.nlargest(_MOST_COMPARED, names, key=lambda name: len(commonprefix((name, glob.text))))  # noqa: RUF071
    return UnknownName(field.value, glob.text, [*_corrected(glob, names, _SEPARATORS.get(field, "")), *nearest])


def _corrected(glob: Glob, names: list[str], separator: str) -> Iterator[str]:
    """The pattern with one of its steps put right, where that makes it match something."""
    steps = glob.text.split(separator) if separator else []
    known = sorted({step for name in names for step in name.split(separator)}) if separator else []
    for index, step in enumerate(steps):
        for near in similar_names(step, known)[:_CORRECTIONS]:
            corrected = separator.join([*steps[:index], near, *steps[index + 1 :]])
            if near != step and any(map(Glob(corrected).matcher(separator), names)):
                yield corrected


def _classes(provenance: Provenance, _: Glob) -> Iterator[str]:
    yield from (module.class_name for module in provenance.hierarchy.modules.values())


def _ops(provenance: Provenance, glob: Glob) -> Iterator[str]:
    """`Attention`, or `com.microsoft::Attention` if the query writes it so."""
    if DOMAIN_MARK in glob.text:
        edges = provenance.known_edges()
        yield from (written_op(entry, edges) for entry in provenance.nodes.values())
    else:
        yield from (entry.op_type for entry in provenance.nodes.values())


def _evidence(provenance: Provenance, glob: Glob) -> Iterator[str]:
    """Kinds are few and all known; sources are those that this file has."""
    if EVIDENCE_MARK in glob.text:
        items = (item for entry in provenance.nodes.values() for item in entry.attribution.evidence)
        yield from (f"{item.kind}{EVIDENCE_MARK}{item.source}" for item in items)
    else:
        yield from EvidenceKind


def _params(provenance: Provenance, _: Glob) -> Iterator[str]:
    """Those of the model too: a parameter that an exporter folded away is no misspelt name."""
    yield from chain.from_iterable(parameter_names(provenance).values())
    yield from provenance.hierarchy.tensor_owners


_NAMES: Mapping[QueryField, Callable[[Provenance, Glob], Iterable[str]]] = {
    QueryField.MODULE: lambda provenance, _: provenance.hierarchy.canonical,
    QueryField.TAG: lambda provenance, _: provenance.tags.by_tag,
    QueryField.CLASS: _classes,
    QueryField.WITHIN: _classes,
    QueryField.ROLE: lambda provenance, _: filter(None, (e.attribution.role for e in provenance.nodes.values())),
    QueryField.OP: _ops,
    QueryField.EVIDENCE: _evidence,
    # All that there are: whether one occurs in this file is what the query asks.
    QueryField.RELATION: lambda *_: Relation,
    QueryField.PARAM: _params,
    QueryField.TENSOR: lambda provenance, _: provenance.known_edges().values,
}


# Of a query with thousands of terms, not each one is tried by itself.
_MOST_REMARKS = 10


@dataclass(frozen=True)
class Answer:
    """
    query    as it was understood
    remarks  why there are no nodes, and that a record is not up to date
    notes    what to know about where the modules are known from
    """

    query: str
    provenance: Provenance
    nodes: tuple[NodeEntry, ...]
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class PackageAnswer:
    """The answer of a package: the nodes of every file that are meant, with the component that they are in.

    components  the answer of each file, by the name of its component
    remarks     why there are no nodes at all, and that a record is not up to date
    """

    folder: str
    query: str
    components: Mapping[str, Answer]
    remarks: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def nodes(self) -> tuple[tuple[str, NodeEntry], ...]:
        """With their components, in file order."""
        return tuple((name, entry) for name, answer in self.components.items() for entry in answer.nodes)


def answer_query(text: str, provenance: Provenance, *, whole_modules: bool = False) -> Answer:
    """Nodes in file order.

    whole_modules  whether a module that is named by its path or class is meant with everything inside of it
    """
    return next(answer_queries(text, [provenance], whole_modules=whole_modules))


def answer_queries(text: str, provenances: Sequence[Provenance], *, whole_modules: bool = False) -> Iterator[Answer]:
    """The answers of several files that make one model; a name must be that of something in one of them."""
    expression = parse_query(text)
    # Names are checked as they were written, so that an error shows them so.
    check_names(expression, *provenances)
    if whole_modules:
        expression = include_submodules(expression)
    for provenance in provenances:
        nodes = select(expression, provenance)
        remarks = () if nodes else tuple(_remarks(expression, provenance))
        yield Answer(str(expression), provenance, nodes, remarks)


def find_nodes(text: str, provenance: Provenance, *, whole_modules: bool = False) -> Answer:
    """The same, for whoever has no use for a query without nodes: UserError says why there are none."""
    answer = answer_query(text, provenance, whole_modules=whole_modules)
    if not answer.nodes:
        hint = "; ".join(answer.remarks) + ". Try it with `modelexport query`."
        raise UserError(f"the query selects nothing: {answer.query}", hint)
    return answer


def select(expression: Expression, provenance: Provenance) -> tuple[NodeEntry, ...]:
    """The nodes that a query means, whether its names are known or not."""
    # Each node is asked by a predicate and nothing is indexed: 50,000 nodes take some milliseconds.
    holds = predicate_of(expression, provenance)
    return tuple(entry for entry in provenance.nodes.values() if holds(entry))


def _remarks(expression: Expression, provenance: Provenance) -> Iterator[str]:
    """Terms that no node satisfies even alone; or that only their combination is empty."""
    terms = islice(dict.fromkeys(asserted_terms(expression)), _MOST_REMARKS)
    alone = [term for term in terms if not select(term, provenance)]
    if not alone:
        yield "no node matches all of the query"
    for term in alone:
        yield _remark(term, provenance)


def _remark(term: Term, provenance: Provenance) -> str:
    """Names are known at this point, so it is not a misspelt one: what else users most often mean."""
    if term.field is QueryField.MODULE and isinstance(term.value, Glob):
        inside = Term(QueryField.MODULE, Operator.IS, Glob(f"{term.value}.**" if term.value.text else "**"))
        if select(inside, provenance):
            return f"no node matches {term} itself; {inside} is with everything inside of it"
    if term.field is QueryField.PARAM:
        return f"no node reads {term}: the exporter folded it into something else"
    return f"no node matches {term}"
