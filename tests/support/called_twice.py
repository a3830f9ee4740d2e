"""A module that runs twice."""

from __future__ import annotations

from dataclasses import replace

from tests.support.small_file import SmallFile, credited, small_hierarchy

from modelexport.record.hierarchy import CallSite, Hierarchy, ModuleCall


def twice() -> SmallFile:
    """The small file in which the first block runs twice, instead of the second."""
    known = small_hierarchy()
    again = [ModuleCall("layers.0", 1), ModuleCall("layers.0.fc", 1)]
    sites = [CallSite(again[0], ModuleCall("")), CallSite(again[1], again[0])]
    hierarchy = Hierarchy.of(known.modules.values(), [*known.calls, *sites])
    owners = {"r1": replace(credited("layers.0"), owners=(again[0],), ancestor=again[0])}
    owners["h1"] = replace(credited("layers.0.fc"), owners=(again[1],), ancestor=again[1])
    return SmallFile(owners=owners, hierarchy=hierarchy)
