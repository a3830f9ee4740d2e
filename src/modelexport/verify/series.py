"""Run series: what a value says that agrees with one of the model in several runs of different inputs and sizes.

Small integers, truth values and constants are equal by chance in one run. If inputs and open axes are others in each
run, what agrees in all of them is hardly chance:

    value of the file      first run      second run        of the model
    Gather of a Shape      2              1                 no 2, 1 among its values: nobody
    And of two masks       [[1, 0], …]    [[0, 1, 1]]       logical_and, issued by encoder: encoder made it

A model may leave out work in one of the runs (that of a mask that hides nothing). So its values go by label: the third
`aten.add.Tensor` that encoder@0 issued. What has a label in several runs must agree in all of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType

from modelexport.graph.algorithms import backward_slice, group_by_key
from modelexport.graph.index import Graph, Node
from modelexport.graph.sample import Sample, alike
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.signals import EagerRun
from modelexport.verify.witness import SampleIndex

# Elements of a tensor that is no size, axis or shape.
_MANY = 9


@dataclass(frozen=True)
class SeenRun:
    """One run of the model and of the file on the same inputs.

    samples  of the model's values, by number
    seen     of the file's values, by name
    rounds   of those inside of bodies, in each round after the first
    exchanged  values of the file that were wrong: what is seen is what took their place
    """

    run: EagerRun
    samples: Sequence[Sample]
    seen: Mapping[str, Sample]
    rounds: Sequence[Mapping[str, Sample]] = ()
    exchanged: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Label:
    """A value of the model, whatever its number is in a run: the operator's call and name, which of these it is, and
    which of its results."""

    call: ModuleCall
    name: str
    occurrence: int
    result: int


@dataclass(frozen=True, slots=True)
class SeriesEvidence:
    """
    issuers    the calls that issued a node's value in every run
    is_strong  it is more than a few numbers: whoever did not issue it has no part in it
    is_new     they made it, and did not only pass it on
    labels     of the values that they issued
    """

    issuers: frozenset[ModuleCall] = frozenset()
    is_strong: bool = False
    is_new: bool = True
    labels: frozenset[Label] = frozenset()


class _ParameterReaders:
    """Who reads a parameter, or what is made of parameters alone, as it is or transposed."""

    def __init__(self, run: SeenRun) -> None:
        fixed = ((number, op.call) for op in run.run.ops for number in op.reads if number not in run.run.computed)
        self._readers = group_by_key(fixed)
        self._index = SampleIndex({number: run.samples[number] for number in self._readers})

    def readers(self, weight: Sample) -> Iterator[ModuleCall]:
        return (call for number in self._index.alike(weight) for call in self._readers[number])


@dataclass(frozen=True)
class _LabelledRun:
    seen: Mapping[str, Sample]
    samples: Mapping[Label, Sample]
    reads: Mapping[Label, tuple[Sample, ...]]
    sources: Mapping[Label, tuple[Label, ...]]
    labels: Sequence[Label]
    index: SampleIndex

    @classmethod
    def of(cls, run: SeenRun) -> _LabelledRun:
        samples, reads, sources, label_of = {}, {}, {}, dict[int, Label]()
        occurrences: Counter[tuple[ModuleCall, str]] = Counter()
        for op in run.run.ops:
            occurrence = occurrences[op.call, op.name]
            occurrences[op.call, op.name] += 1
            for result, number in enumerate(op.makes):
                label = Label(op.call, op.name, occurrence, result)
                samples[label] = _as_numbers(run.samples[number])
                reads[label] = tuple(_as_numbers(run.samples[read]) for read in op.reads)
                sources[label] = tuple(label_of[read] for read in op.reads if read in label_of)
                label_of[number] = label
        # What was exchanged was not made by its node.
        made = (item for item in run.seen.items() if item[0] not in run.exchanged)
        seen = {name: _as_numbers(sample) for name, sample in made}
        labels = tuple(samples)
        return cls(seen, samples, reads, sources, labels, SampleIndex(dict(enumerate(samples.values()))))

    def labels_like(self, name: str) -> set[Label]:
        return {self.labels[number] for number in self.index.alike(self.seen[name])}

    def is_passed_on(self, label: Label) -> bool:
        return any(alike(self.samples[label], read) for read in self.reads[label])

    def made_of(self, label: Label) -> set[Label]:
        """A value, and those that its operator read, also where others only passed these on to it."""

        def passed_on(source: Label) -> Iterable[Label]:
            return self.sources[source] if source == label or self.is_passed_on(source) else ()

        return set(backward_slice([label], passed_on)) if label in self.sources else set()


class RunSeries:
    """Runs of one model and one file; the first is the one that attributions are held against.

    weights  samples of the file's initializers
    """

    def __init__(self, runs: Sequence[SeenRun], weights: Mapping[str, Sample] = MappingProxyType({})) -> None:
        self._runs = [_LabelledRun.of(run) for run in runs]
        self._weights = weights
        self._parameters = _ParameterReaders(runs[0])
        self._hooked = runs[0].run.hooked

    def weight_readers(self, node: Node) -> frozenset[ModuleCall]:
        """The calls whose operators read the weights that a node reads."""
        weights = [self._weights[name] for name in node.inputs if name in self._weights]
        return frozenset(call for weight in weights if weight.distinctive for call in self._parameters.readers(weight))

    def are_hooked(self, calls: Iterable[ModuleCall]) -> bool:
        """Whether a hook of one of them may have issued what it seems to have issued."""
        return any(call.path in self._hooked for call in calls)

    def is_idle(self, node: Node) -> bool:
        """Whether a node passes on something that it reads in the same shape, in every run."""
        pairs = [(made, read) for made in node.outputs for read in node.inputs if {made, read} <= self._visible]
        shaped = [pair for pair in pairs if all(_same_shape(run.seen, *pair) for run in self._runs)]
        return any(self._are_alike(made, read) for made, read in shaped)

    def is_short(self, node: Node) -> bool:
        """Whether a further run could say more of what a node makes."""
        if len(self._runs) == 1:
            return any(name in self._visible for name in node.outputs)
        made = [name for name in node.outputs if name in self._visible]
        labels = {label for name in made for run in self._runs for label in run.labels_like(name)}
        return any(sum(label in run.samples for run in self._runs) == 1 for label in labels)

    def examine(self, node: Node) -> SeriesEvidence:
        """The calls that issued, in every run, what a node makes; in the same shape, if it only passes that on."""
        made = [name for name in node.outputs if name in self._visible]
        read = [name for name in node.inputs if name in self._visible]
        passes_on = any(self._are_alike(name, source) for name in made for source in read)
        issued = [(name, label) for name in made for label in self._labels_like(name)]
        in_shape = [(name, label) for name, label in issued if self._has_shape(label, name)]
        new = [(name, label) for name, label in issued if self._is_new(label)]
        # Of several that made the same, those that made it in this shape say more.
        makers = [pair for pair in new if pair in in_shape] or new
        deciding = makers if makers and not passes_on else in_shape
        is_strong = any(_is_varied(run.seen[name]) for name, _ in deciding for run in self._runs)
        labels = frozenset(label for _, label in deciding)
        return SeriesEvidence(frozenset(label.call for label in labels), is_strong, deciding is makers, labels)

    def tell_apart(
        self, graph: Graph, said: Mapping[str, SeriesEvidence], shown: Mapping[str, Collection[ModuleCall]]
    ) -> Mapping[str, frozenset[ModuleCall]]:
        """By node key, of nodes that several calls issued: those whose values are read as the node's is read.

            run     a: sin ─► s0 ─► add of b        c: sin ─► s1 ─► mul of d        s0 and s1 are equal
            graph   Sin ─► Add (b's)                                                this Sin is a's

        said   what is known of nodes that are not shown
        shown  the owners of those that are
        """
        left = {key: evidence.labels for key, evidence in said.items() if evidence.labels}
        ambiguous = [node for node in graph.running_order if len(left.get(node.key, ())) > 1]
        for node in reversed(ambiguous):  # what reads a node is decided before it
            for reader in graph.successors(node):
                read = left.get(reader.key) or self._labels_of(reader, shown.get(reader.key, ()))
                fitting = left[node.key] & set().union(*map(self._runs[0].made_of, read))
                left[node.key] = fitting or left[node.key]
        return {key: frozenset(label.call for label in labels) for key, labels in left.items()}

    def _labels_of(self, node: Node, owners: Collection[ModuleCall]) -> Iterable[Label]:
        """What the owners of a shown node issued that holds the same, in the first run."""
        made = [name for name in node.outputs if name in self._runs[0].seen]
        return [label for name in made for label in self._runs[0].labels_like(name) if label.call in owners]

    @cached_property
    def _visible(self) -> frozenset[str]:
        """Values of the file that were seen in every run."""
        return frozenset.intersection(*(frozenset(run.seen) for run in self._runs))

    def _labels_like(self, name: str) -> list[Label]:
        """What holds the same as a value of the file in all runs that have it."""
        alike_in = [(run, run.labels_like(name)) for run in self._runs]
        labels = set().union(*(labels for _, labels in alike_in))
        having = {label: [(run, labels) for run, labels in alike_in if label in run.samples] for label in labels}
        agreeing = [label for label in labels if all(label in like for _, like in having[label])]
        return [label for label in agreeing if _is_telling([run.seen[name] for run, _ in having[label]])]

    def _are_alike(self, made: str, read: str) -> bool:
        return all(alike(run.seen[made], run.seen[read]) for run in self._runs)

    def _is_new(self, label: Label) -> bool:
        """Whether it is other than all that its operator read, in some run: views, copies and casts pass on."""
        return not all(run.is_passed_on(label) for run in self._runs if label in run.samples)

    def _has_shape(self, label: Label, name: str) -> bool:
        having = (run for run in self._runs if label in run.samples)
        return all(run.samples[label].shape == run.seen[name].shape for run in having)


def _is_varied(sample: Sample) -> bool:
    return sample.size >= _MANY and bool((sample.values != sample.values[:1]).any())


def _is_telling(samples: Sequence[Sample]) -> bool:
    """Whether there is more to a value than one number that never changes."""
    first, *others = samples
    if not others:
        return first.distinctive
    return not all(alike(first, other) for other in others) or bool((first.values != first.values[:1]).any())


def _same_shape(seen: Mapping[str, Sample], made: str, read: str) -> bool:
    return seen[made].shape == seen[read].shape


def _as_numbers(sample: Sample) -> Sample:
    """Truth values as the integers that exporters make of them."""
    return replace(sample, kind="int") if sample.kind == "bool" else sample
