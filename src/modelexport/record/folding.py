"""What folding made of a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class FoldedFunction:
    """A function that modules became.

    calls    how many calls of modules it stands for
    nodes    how many nodes its body has, calls of other functions included
    modules  the module calls that it stands for
    """

    name: str
    class_name: str
    calls: int
    nodes: int
    modules: tuple[str, ...]


# Why a module does not become a call of a function.
INTERLEAVED = "its nodes and those of other modules need each other's results"
UNREAD = "nothing reads its results"
ALONE = "it is called once"
SMALL = "it is a single node"


@dataclass(frozen=True, slots=True)
class Unfolded:
    """Calls of modules of one class that did not become calls of a function, and why."""

    class_name: str
    calls: int
    reason: str

    @property
    def is_usual(self) -> bool:
        """Whether there was nothing to gain; else it repeats, and could not be folded."""
        return self.reason in (ALONE, SMALL)


@dataclass(frozen=True)
class Folding:
    """
    before    nodes of the file before, those in bodies and functions included
    after     the same afterwards: every function counts once
    outside   by class: nodes of folded modules that could not become part of the call
    note      what is wrong with the file that was folded, or with folding it
    """

    before: int
    after: int
    functions: tuple[FoldedFunction, ...] = ()
    unfolded: tuple[Unfolded, ...] = ()
    outside: Mapping[str, int] = field(default_factory=dict)
    note: str = ""

    @property
    def share(self) -> float:
        """Nodes after for each node before."""
        return self.after / self.before if self.before else 1.0


@dataclass(frozen=True)
class Flattening:
    """
    exact    whether the graph is the one that was folded, bit by bit
    inlined  names of the functions that were put in the place of their calls
    kept     names of functions that were left, and why
    note     why it is not the one that was folded, where that is so
    """

    before: int
    after: int
    exact: bool
    inlined: tuple[str, ...] = ()
    kept: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
