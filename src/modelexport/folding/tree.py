"""The calls of modules that the nodes of a graph belong to, from the innermost out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from modelexport.folding.atoms import Atom
from modelexport.graph.index import MAIN, node_key
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Provenance


@dataclass(eq=False)
class Branch:
    """A call of a module: the nodes that it issued itself, and the calls that it made.

    height  0 if it made no calls that have nodes
    """

    call: ModuleCall
    own: list[int] = field(default_factory=list)
    below: list[Branch] = field(default_factory=list)
    height: int = 0


def levels(atoms: Sequence[Atom], provenance: Provenance) -> Iterator[list[Branch]]:
    """All calls with nodes but the outermost, those that made none first; a call comes after all that it made."""
    branches = _branches(atoms, provenance)
    found: dict[int, list[Branch]] = {}
    for call in sorted(branches, key=lambda one: -len(provenance.hierarchy.stack(one))):
        branch = branches[call]
        branch.height = 1 + max((below.height for below in branch.below), default=-1)
    for call, branch in branches.items():
        if len(provenance.hierarchy.stack(call)) > 1:
            found.setdefault(branch.height, []).append(branch)
    yield from (found[height] for height in sorted(found))


def _branches(atoms: Sequence[Atom], provenance: Provenance) -> Mapping[ModuleCall, Branch]:
    hierarchy = provenance.hierarchy
    found: dict[ModuleCall, Branch] = {}
    for number, atom in enumerate(atoms):
        entry = provenance.nodes.get(node_key(atom.proto, MAIN))
        call = None if entry is None else entry.attribution.ancestor
        if call is not None and not atom.large:
            _grown(found, call, hierarchy).own.append(number)
    return found


def _grown(found: dict[ModuleCall, Branch], call: ModuleCall, hierarchy: Hierarchy) -> Branch:
    """The branch of a call, made if there is none, with all that lead to it."""
    if call not in found:
        above: Branch | None = None
        for one in hierarchy.stack(call):
            branch = found.get(one)
            if branch is None:
                branch = found[one] = Branch(one)
                if above is not None:
                    above.below.append(branch)
            above = branch
    return found[call]
