"""The work of one node in one place."""

from __future__ import annotations

from dataclasses import dataclass

from modelexport.costing.work import Work
from modelexport.record.polynomial import Polynomial


@dataclass(frozen=True)
class Piece:
    """A node of a function has one of these for each call.

    key      that of the node in the file
    calls    keys of the calls of functions around it, from the outside in
    times    how often it runs
    reads    initializers that it reads
    weights  initializers that it reads as they are or in another form, such as transposed
    makes    bytes; None if they are not known
    """

    key: str
    calls: tuple[str, ...]
    work: Work
    times: Polynomial
    reads: tuple[str, ...]
    weights: tuple[str, ...]
    makes: Polynomial | None
