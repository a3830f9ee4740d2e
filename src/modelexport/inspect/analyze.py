"""Analysis: what a file consists of, module by module: nodes, weights, operators, and how well each is known.

To add a column to `analyze`: count it in `graph/module_totals.py` (so that all verbs count it alike) or in a function
here, give it a field in the class below that it is about (`ModuleFacts`, `NodeFacts`, `FileFacts`), a cell in
`show/text/analysis.py`, and a key in `show/data/results.py` with its line in `record/schema/analysis.schema.json`.

    encoder.layer.0  BertLayer  own 0 nodes  total 42 nodes, 1.77 M parameters  /BertModel/BertEncoder/BertLayer.0

With a filter (`--filter-tag`), only nodes and weights whose tag contains a text are counted, and modules without any
are left out. Whether a module owns anything at all is still asked of the whole file, or each module outside of the
filter would look as if nothing were left of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.module_totals import ModuleAmounts, ModuleTotals
from modelexport.graph.parameters import ParameterMatching
from modelexport.record.hierarchy import Module
from modelexport.record.provenance import Attribution, Confidence, EvidenceKind, Provenance


@dataclass(frozen=True)
class FileFacts:
    """The file and how its record came to be.

    matches_record  the graph is the one that the record was made for, unchanged
    has_record      False if there is none, and everything is read from the file itself
    model           what was exported, as the user named it
    """

    path: str
    ir_version: int
    opsets: Mapping[str, int]
    exporter: str
    strategy: str
    model: str
    tools: Mapping[str, str]
    fingerprint: str
    matches_record: bool
    has_record: bool = True


@dataclass(frozen=True)
class NodeFacts:
    """One node. `module` is the module that issued it, or the one that encloses all of `modules`.

    role   what it does, `attention.query`; empty if nothing is known
    layer  number of the repeated block that it is in
    """

    name: str
    key: str
    op_type: str
    module: str | None
    modules: tuple[str, ...]
    tag: str
    confidence: Confidence
    evidence: tuple[str, ...]
    reason: str
    role: str = ""
    layer: int | None = None


@dataclass(frozen=True)
class RoleFacts:
    """One role: how many nodes have it, and in which layers they are."""

    role: str
    nodes: int
    layers: tuple[int, ...]


@dataclass(frozen=True)
class ModuleFacts:
    """One module: what it owns itself and with the modules inside of it; no tag if the policy hides it."""

    path: str
    class_name: str
    tag: str
    calls: int
    own: ModuleAmounts
    total: ModuleAmounts


@dataclass(frozen=True)
class Tally:
    """How many there are, by how sure their owner is and by kind of evidence (one may have several kinds)."""

    total: int
    by_confidence: Mapping[Confidence, int]
    by_evidence: Mapping[EvidenceKind, int]

    @classmethod
    def of(cls, attributions: Iterable[Attribution]) -> Tally:
        """With all levels and kinds, also those that none has: a table shows its zeros."""
        confidences: Counter[Confidence] = Counter()
        kinds: Counter[EvidenceKind] = Counter()
        listed = list(attributions)
        distinct = {id(attribution): attribution for attribution in listed}
        for number, count in Counter(map(id, listed)).items():
            confidences[distinct[number].confidence] += count
            for kind in {evidence.kind for evidence in distinct[number].evidence}:
                kinds[kind] += count
        return cls(
            confidences.total(),
            {level: confidences[level] for level in sorted(Confidence, reverse=True)},
            {kind: kinds[kind] for kind in EvidenceKind},
        )

    def share(self, count: int) -> float:
        return count / self.total if self.total else 0.0


@dataclass(frozen=True)
class ClassTally:
    """Of how many modules the class is known, described by what the nodes do, or unknown. Lists run nothing."""

    known: int
    described: int
    unknown: int

    @classmethod
    def of(cls, modules: Iterable[Module]) -> ClassTally:
        counted = [module for module in modules if module.is_class_known or not module.container]
        known = sum(module.is_class_known for module in counted)
        described = sum(bool(module.class_name) for module in counted) - known
        return cls(known, described, len(counted) - known - described)


@dataclass(frozen=True)
class Coverage:
    """How many nodes and initializers are known how well, and how many classes."""

    nodes: Tally
    initializers: Tally
    classes: ClassTally


@dataclass(frozen=True)
class Unowned:
    """A module that owns neither a node nor an initializer. `inside`: modules inside of it do."""

    path: str
    class_name: str
    inside: bool
    reason: str


@dataclass(frozen=True)
class Analysis:
    """All that `analyze` says. `modules` is in the order of the hierarchy, `nodes` in that of the file.

    notes  what to know about where the answers come from
    """

    file: FileFacts
    nodes: tuple[NodeFacts, ...]
    modules: tuple[ModuleFacts, ...]
    coverage: Coverage
    unowned: tuple[Unowned, ...]
    roles: tuple[RoleFacts, ...] = ()
    filter_tag: str = ""
    notes: tuple[str, ...] = ()


def _sum_by_module(file: TaggedFile, shown: Provenance, matching: ParameterMatching) -> ModuleTotals:
    """Sums of the nodes and initializers that `shown` has: the file's record, or a part of it."""
    totals = ModuleTotals()
    for entry in shown.nodes.values():
        totals.add_node(entry, entry.op_type, shown)
    totals.add_initializers(file.graph, shown, matching, shown.initializers)
    return totals


def analyze_file(file: TaggedFile, filter_tag: str | None = None) -> Analysis:
    """Everything about a file, or about those of its nodes and weights whose tag contains `filter_tag`."""
    record = file.provenance
    shown = filter_record(record, filter_tag) if filter_tag else record
    # Matched on all of the record: what a weight is does not depend on what is shown.
    matching = ParameterMatching(file.graph, record, file.inlined)
    owned = _sum_by_module(file, record, matching)
    sums = owned if shown is record else _sum_by_module(file, shown, matching)
    modules = tuple(_module(module, shown, sums) for module in shown.hierarchy.modules.values())
    if filter_tag:
        modules = tuple(module for module in modules if module.total.nodes or module.total.bytes)
    nodes = _describe_nodes(shown)
    return Analysis(
        file=_file(file),
        nodes=nodes,
        modules=modules,
        coverage=Coverage(
            nodes=Tally.of(entry.attribution for entry in shown.nodes.values()),
            initializers=Tally.of(shown.initializers.values()),
            classes=ClassTally.of(shown.hierarchy.modules.values()),
        ),
        unowned=tuple(_unowned(record, owned, filter_tag or "")),
        roles=tuple(_roles(nodes)),
        filter_tag=filter_tag or "",
    )


def filter_record(provenance: Provenance, text: str) -> Provenance:
    """The record of the nodes and weights whose tag contains the text."""
    tag, weights = provenance.tag, provenance.initializers
    nodes = {key: entry for key, entry in provenance.nodes.items() if text in tag(entry.attribution)}
    initializers = {name: attribution for name, attribution in weights.items() if text in tag(attribution)}
    return replace(provenance, nodes=nodes, initializers=initializers)


def _file(file: TaggedFile) -> FileFacts:
    origin = file.provenance.origin
    return FileFacts(
        path=str(file.path),
        ir_version=file.proto.ir_version,
        opsets={opset.domain or "ai.onnx": opset.version for opset in file.proto.opset_import},
        exporter=origin.exporter,
        strategy=origin.strategy,
        model=origin.model,
        tools=dict(origin.tools),
        fingerprint=file.graph.fingerprint,
        matches_record=origin.graph == file.graph.fingerprint,
        has_record=file.is_recorded,
    )


def _describe_nodes(provenance: Provenance) -> tuple[NodeFacts, ...]:
    """Most nodes share their attribution with others, and with it all that is said of their module."""
    said: dict[int, tuple[Attribution, _Said]] = {}
    nodes = []
    for entry in provenance.nodes.values():
        attribution = entry.attribution
        known = said.get(id(attribution))
        if known is None:
            # With the attribution itself, so that its number stays its own.
            known = said[id(attribution)] = attribution, _say(attribution, provenance)
        nodes.append(NodeFacts(entry.name, entry.key, entry.op_type, *known[1]))
    return tuple(nodes)


_Said = tuple[str | None, tuple[str, ...], str, Confidence, tuple[str, ...], str, str, int | None]


def _say(attribution: Attribution, provenance: Provenance) -> _Said:
    """The fields of `NodeFacts` from `module` on."""
    return (
        attribution.module,
        attribution.modules,
        provenance.tag(attribution),
        attribution.confidence,
        tuple(map(str, attribution.evidence)),
        attribution.reason,
        attribution.role,
        attribution.layer_id,
    )


def _roles(nodes: Iterable[NodeFacts]) -> Iterator[RoleFacts]:
    """Roles as they come in the graph, parts of one thing beside each other: all of `attention.…`, then `mlp.…`."""
    by_kind: dict[str, dict[str, list[int | None]]] = {}
    for node in nodes:
        if node.role:
            kind = by_kind.setdefault(node.role.partition(".")[0], {})
            kind.setdefault(node.role, []).append(node.layer)
    for role, layers in chain.from_iterable(kind.items() for kind in by_kind.values()):
        yield RoleFacts(role, len(layers), tuple(sorted({layer for layer in layers if layer is not None})))


def _module(module: Module, provenance: Provenance, sums: ModuleTotals) -> ModuleFacts:
    return ModuleFacts(
        path=module.path,
        class_name=module.class_name,
        tag=provenance.tags.by_path.get(module.path, ""),
        calls=provenance.hierarchy.call_counts.get(module.path, 0),
        own=sums.own(module.path),
        total=sums.total(module.path),
    )


def _unowned(provenance: Provenance, sums: ModuleTotals, text: str) -> Iterator[Unowned]:
    """Modules of which nothing is in the graph, with the reason; with a filter, those whose tag contains it."""
    for path, module in provenance.hierarchy.modules.items():
        if not sums.is_served(path) and text in provenance.tags.tag(path):
            inside = sums.is_served_inside(path)
            yield Unowned(path, module.class_name, inside, _why(provenance, module, inside))


def _why(provenance: Provenance, module: Module, inside: bool) -> str:
    """Why nothing in the graph is the module's own; what the export noted about it comes first."""
    if module.path in provenance.absent:
        return provenance.absent[module.path]
    if module.path not in provenance.hierarchy.call_counts:
        return "it only holds other modules" if module.container else "it was not called"
    if inside:
        return "the modules inside of it issue all of its operators"
    return "nothing of it is in the graph any more"
