"""Small rows of the corpus, and results of them."""

from __future__ import annotations

from measure.corpus.rows import EXPORTERS, HAND_MADE, Expected, Outcome, Proof, Result, Row

OK = Expected(Outcome.OK)


def row(name: str, family: str = HAND_MADE, **expected: Expected) -> Row:
    """A row that expects `ok` of every exporter that nothing is said of."""
    return Row(name, family, f"rooms.{name.title()}", {exporter: expected.get(exporter, OK) for exporter in EXPORTERS})


def fine(name: str, exporter: str = "dynamo", *, nodes: int = 10, shown: int = 10) -> Result:
    open_nodes = {"nobody knows": nodes - shown} if nodes > shown else {}
    proof = Proof(nodes, proved=shown, not_provable=nodes - shown, compute=nodes, compute_shown=shown, open=open_nodes)
    return Result(name, exporter, Outcome.OK, proof=proof)


def refused(name: str, reason: str, exporter: str = "dynamo") -> Result:
    return Result(name, exporter, Outcome.REFUSED, reason)
