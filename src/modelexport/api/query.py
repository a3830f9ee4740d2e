"""Asking for nodes in a small language. Nothing here needs torch, runs a model or reads a weight."""

from __future__ import annotations

from pathlib import Path

from modelexport.api.reading import load
from modelexport.queries.answer import Answer, answer_query
from modelexport.record.provenance import NodeEntry, Provenance


def query(source: str | Path | Provenance, text: str) -> tuple[NodeEntry, ...]:
    """The nodes that a query such as `module=encoder.** & op=MatMul` means, in file order."""
    return answer(source, text).nodes


def answer(source: str | Path | Provenance, text: str) -> Answer:
    """The same with what it was asked of, and the reason where there are no nodes."""
    return answer_query(text, source if isinstance(source, Provenance) else load(source))
