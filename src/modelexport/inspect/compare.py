"""Comparison by counts: how two files differ, module by module, from their indexes alone. No weight data is read.

Modules are aligned by path, and all calls of a module are taken together, so that exports by different exporters, or of
different versions of a model, can be laid side by side. `diff` goes further: it pairs nodes, and finds modules again
that have other names.

    module              nodes       operators
    encoder.layer.0     42 → 30     MatMul 6 → 6, Attention 0 → 1, Softmax 1 → 0

Scores: what several strategies say of one file, side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.related import have_same_names
from modelexport.inspect.analyze import Analysis, FileFacts, ModuleFacts, analyze_file
from modelexport.record.hierarchy import ROOT
from modelexport.record.provenance import Claim, Confidence, NodeEntry, Provenance


@dataclass(frozen=True)
class CountPair:
    """A number before and after."""

    a: int
    b: int


@dataclass(frozen=True)
class ModuleDifference:
    """What differs in one module that both files have: its own nodes, not those of the modules inside.

    operators  operators that occur more or less often, with their counts in both
    changed    keys of nodes that are in both files with the same operator, but other attributes or inputs
    """

    path: str
    class_a: str
    class_b: str
    tag_a: str
    tag_b: str
    nodes: CountPair
    operators: Mapping[str, CountPair]
    changed: tuple[str, ...]
    parameters: CountPair
    bytes: CountPair

    @property
    def differs(self) -> bool:
        named = self.class_a != self.class_b or self.tag_a != self.tag_b
        sized = self.parameters.a != self.parameters.b or self.bytes.a != self.bytes.b
        return bool(named or self.operators or self.changed or sized)


@dataclass(frozen=True)
class Comparison:
    """`only_a` and `only_b` are modules of one file alone; `inputs` and `outputs` name those of one alone.

    nodes         how many nodes the files have
    unattributed  operators of nodes without a module that occur more or less often
    notes         what to know about where modules are known from
    """

    a: FileFacts
    b: FileFacts
    totals_a: ModuleFacts | None
    totals_b: ModuleFacts | None
    differences: tuple[ModuleDifference, ...]
    only_a: tuple[ModuleFacts, ...]
    only_b: tuple[ModuleFacts, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: CountPair
    unattributed: Mapping[str, CountPair]
    notes: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        modules = self.differences or self.only_a or self.only_b or self.unattributed
        return not (modules or self.inputs or self.outputs)


def compare_files(a: TaggedFile, b: TaggedFile) -> Comparison:
    """Modules that both have in the order of the first; that of the second may be another."""
    analysis_a, analysis_b = analyze_file(a), analyze_file(b)
    left = {module.path: module for module in analysis_a.modules}
    right = {module.path: module for module in analysis_b.modules}
    changed = _changed_nodes(a, b)
    aligned = [_difference(left[path], right[path], changed.get(path, ())) for path in left if path in right]
    return Comparison(
        a=analysis_a.file,
        b=analysis_b.file,
        totals_a=left.get(""),
        totals_b=right.get(""),
        differences=tuple(difference for difference in aligned if difference.differs),
        only_a=tuple(module for path, module in left.items() if path not in right),
        only_b=tuple(module for path, module in right.items() if path not in left),
        inputs=_one_sided(a.graph.inputs, b.graph.inputs),
        outputs=_one_sided(a.graph.outputs, b.graph.outputs),
        nodes=CountPair(len(analysis_a.nodes), len(analysis_b.nodes)),
        unattributed=_changed_counts(_without_module(analysis_a), _without_module(analysis_b)),
    )


def _difference(a: ModuleFacts, b: ModuleFacts, changed: tuple[str, ...]) -> ModuleDifference:
    return ModuleDifference(
        path=a.path,
        class_a=a.class_name,
        class_b=b.class_name,
        tag_a=a.tag,
        tag_b=b.tag,
        nodes=CountPair(a.own.nodes, b.own.nodes),
        operators=_changed_counts(a.own.op_types, b.own.op_types),
        changed=changed,
        parameters=CountPair(a.own.parameters, b.own.parameters),
        bytes=CountPair(a.own.bytes, b.own.bytes),
    )


def _without_module(analysis: Analysis) -> Counter[str]:
    return Counter(node.op_type for node in analysis.nodes if node.module is None)


def _changed_counts(a: Mapping[str, int], b: Mapping[str, int]) -> Mapping[str, CountPair]:
    """Operators that occur more or less often, in alphabetical order."""
    pairs = {op_type: CountPair(a.get(op_type, 0), b.get(op_type, 0)) for op_type in sorted(a.keys() | b.keys())}
    return {op_type: pair for op_type, pair in pairs.items() if pair.a != pair.b}


def _changed_nodes(a: TaggedFile, b: TaggedFile) -> Mapping[str, tuple[str, ...]]:
    """Keys of changed nodes by the path of their module in the first file."""
    # Inputs can only be compared by name, and another exporter names all of them otherwise.
    same_naming = have_same_names(a.graph, b.graph)
    changed: dict[str, list[str]] = {}
    for key, left in a.graph.by_key.items():
        right = b.graph.by_key.get(key)
        if right is None or (left.op_type, left.domain) != (right.op_type, right.domain):
            continue  # the operator counts say so already
        if left.attributes != right.attributes or (same_naming and left.inputs != right.inputs):
            owners = a.provenance.nodes[key].attribution.owners
            changed.setdefault(a.provenance.hierarchy.common_module(owners) or ROOT, []).append(key)
    return {path: tuple(keys) for path, keys in changed.items()}


def _one_sided(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """`-mask` is an input of the first file alone, `+cache` one of the second."""
    return (*(f"-{name}" for name in a if name not in b), *(f"+{name}" for name in b if name not in a))


@dataclass(frozen=True)
class Score:
    """One strategy.

    by_confidence  nodes that it attributes
    same           nodes of which it says what the merged answer says
    less           nodes of which it says less: a module around the right one, or not all owners
    other          nodes of which it says something else
    seconds        for judging; recording what it judges by is not in it
    """

    strategy: str
    by_confidence: Mapping[Confidence, int]
    same: int
    less: int
    other: int
    seconds: float

    @property
    def attributed(self) -> int:
        return sum(self.by_confidence.values())


@dataclass(frozen=True)
class Dispute:
    """A node on which strategies contradict each other, with all that was claimed."""

    entry: NodeEntry
    claims: tuple[Claim, ...]


@dataclass(frozen=True)
class Scores:
    """All strategies on one file.

    provenance  the merged answer
    recording   seconds that it took to record what strategies judge by
    """

    path: str
    provenance: Provenance
    scores: tuple[Score, ...]
    disputes: tuple[Dispute, ...]
    recording: float
    notes: tuple[str, ...] = ()
