"""How things are written in a query: modules and their calls, operators with a domain, evidence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from modelexport.queries.values import Glob
from modelexport.record.edges import Edges
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import NodeEntry

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
        numbered = called.path != glob.text
        return cls(
            _by_any_name(glob, hierarchy),
            _by_any_name(Glob(called.path), hierarchy) if numbered else _never,
            called.index,
        )

    def fits(self, call: ModuleCall) -> bool:
        return self.matches(call.path) or (call.index == self.index and self.matches_called(call.path))

    def fits_module(self, path: str) -> bool:
        return self.matches(path) or self.matches_called(path)


def _by_any_name(glob: Glob, hierarchy: Hierarchy) -> Callable[[str], bool]:
    matches = glob.matcher(".")

    @cache
    def fits(path: str) -> bool:
        module = hierarchy.modules.get(hierarchy.canonical.get(path, path))
        others = () if module is None else (module.path, *module.aliases)
        return any(map(matches, (path, *others)))

    return fits


def _never(_: str) -> bool:
    return False


def written_op(entry: NodeEntry, edges: Edges) -> str:
    return f"{edges.domains.get(entry.key, _ONNX_DOMAIN)}{DOMAIN_MARK}{entry.op_type}"
