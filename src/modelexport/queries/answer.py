"""The nodes that a query means; and where there are none, what stood in the way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from modelexport.errors import UserError
from modelexport.queries.expression import Expression, Field, Operator, Term, asserted_terms, deepened
from modelexport.queries.known import check_names
from modelexport.queries.parsing import parse_query
from modelexport.queries.predicates import predicate_of
from modelexport.queries.values import Glob
from modelexport.record.provenance import NodeEntry, Provenance

# Of a query with thousands of terms, not each one is tried by itself.
_MOST_REMARKS = 10


@dataclass(frozen=True)
class Answer:
    """`query` is as it was understood; `remarks` say why there are no nodes, if there are none."""

    query: str
    provenance: Provenance
    nodes: tuple[NodeEntry, ...]
    remarks: tuple[str, ...] = ()


def answer_query(text: str, provenance: Provenance, *, whole_modules: bool = False) -> Answer:
    """Nodes in file order.

    whole_modules  whether a module that is named by its path or class is meant with everything inside of it
    """
    expression = parse_query(text)
    check_names(expression, provenance)
    if whole_modules:
        expression = deepened(expression)
    nodes = select(expression, provenance)
    remarks = () if nodes else tuple(_remarks(expression, provenance))
    return Answer(str(expression), provenance, nodes, remarks)


def find_nodes(text: str, provenance: Provenance, *, whole_modules: bool = False) -> Answer:
    """The same, for whoever has no use for a query without nodes: UserError says why there are none."""
    answer = answer_query(text, provenance, whole_modules=whole_modules)
    if not answer.nodes:
        raise UserError(
            f"the query selects nothing: {answer.query}",
            "; ".join(answer.remarks) + ". Try it with `modelexport query`.",
        )
    return answer


def select(expression: Expression, provenance: Provenance) -> tuple[NodeEntry, ...]:
    holds = predicate_of(expression, provenance)
    return tuple(entry for entry in provenance.nodes.values() if holds(entry))


def _remarks(expression: Expression, provenance: Provenance) -> Iterator[str]:
    terms = islice(dict.fromkeys(asserted_terms(expression)), _MOST_REMARKS)
    alone = [term for term in terms if not select(term, provenance)]
    if not alone:
        yield "no node matches all of the query"
    for term in alone:
        yield _remark(term, provenance)


def _remark(term: Term, provenance: Provenance) -> str:
    if term.field is Field.MODULE and isinstance(term.value, Glob):
        inside = Term(Field.MODULE, Operator.IS, Glob(f"{term.value}.**" if term.value.text else "**"))
        if select(inside, provenance):
            return f"no node matches {term} itself; {inside} is with everything inside of it"
    if term.field is Field.PARAM:
        return f"no node reads {term}: the exporter folded it into something else"
    return f"no node matches {term}"
