"""Resynchronization: where a file computes something else than the model, its run goes on with the model's value.

What lies behind a wrong value is wrong as well, and proves nothing. Given the right value, it is judged by itself again
(teacher forcing, as in the training of recurrent networks):

    run:    x ─► as_strided ─► s ─► softmax ─► p
    graph:  x ─► Reshape ─► Gather ─► s' ─► Softmax ─► p'      Softmax is given s instead of s': now it makes p

Which value of the model is missing where the file has a wrong one is told by values and dataflow, never by whom a node
is credited to:

- no value of the file holds it in its shape, which is that of the wrong one
- both are worked out from the same values, which the file has
- something that the model computes from it, the file computes from what took its place: else it was a wrong guess
- it could not as well be another one, which the file does not have in the end: two wrong values of one shape, made from
  the same, may each be either of the two, unless they look like them

The node that made what was exchanged stays wrong: values prove nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from modelexport.graph.algorithms import group_by_key
from modelexport.graph.index import MAIN, Graph
from modelexport.graph.sample import Sample, distance
from modelexport.record.signals import EagerRun
from modelexport.verify.witness import OperatorSources, SampleIndex

_Ids = frozenset[int]

_NONE: _Ids = frozenset()
# A wrong value that is nearer than this to a missing one stands for it: relative to their sizes, as 20 decibels are.
_NEAR = 0.1


@dataclass(frozen=True, slots=True)
class Exchange:
    """A value of the file, by name, and one of the model, by number, that takes its place.

    number  None: to be decided once more has been computed of what follows
    """

    name: str
    number: int | None = None


@dataclass(frozen=True, slots=True)
class _Choice:
    """What an exchange was chosen by.

    sources  ids of what the wrong value was worked out from
    rivals   numbers of all that were missing and fitted; none if the chosen one looks like what it takes the place of
    """

    sources: _Ids
    rivals: frozenset[int]


class ModelDataflow:
    """The values of a run that say something, and what they are worked out from. Those that hold the same are one."""

    def __init__(self, run: EagerRun, samples: Sequence[Sample], sources: OperatorSources) -> None:
        telling = [number for number in sorted(run.computed | run.given) if is_telling(samples[number])]
        self.samples = {number: samples[number] for number in telling}
        self._index = SampleIndex(self.samples)
        self._ids = {number: min(self._index.alike(sample)) for number, sample in self.samples.items()}
        self._sources = sources
        self._reads = {
            number: [read for read in op.reads if read in self._ids and read != number]
            for op in run.ops
            for number in op.makes
            if number in self._ids
        }
        self._made_with = {
            number: frozenset(self._ids[made] for made in op.makes if made in self._ids)
            for op in run.ops
            for number in op.makes
        }
        self.by_shape = group_by_key((samples[number].shape, number) for number in self._reads)

    def ids_like(self, sample: Sample) -> _Ids:
        """What holds the same as a value of the file; nobody if that says nothing."""
        like = self._index.alike(sample) if is_telling(sample) else ()
        return frozenset(self._ids[number] for number in like)

    def numbers_like(self, sample: Sample) -> frozenset[int]:
        """What holds the same in the same shape."""
        like = self._index.alike(sample) if is_telling(sample) else ()
        return frozenset(number for number in like if self.samples[number].shape == sample.shape)

    def id_of(self, number: int) -> int:
        return self._ids[number]

    def trace_sources(self, held: Collection[int]) -> dict[int, _Ids]:
        """By number: the values that the operators before it were given, back to those that the file has.

        held  the ids of these
        """
        traced: dict[int, _Ids] = {}

        def reached(number: int) -> Collection[int]:
            is_known = self._ids[number] in held or number not in self._reads
            return (self._ids[number],) if is_known else traced[number]

        for number, reads in self._reads.items():  # in the order of the run
            traced[number] = _NONE.union(*map(reached, reads))
        return traced

    def is_made_from(self, number: int, sources: _Ids, traced: Mapping[int, _Ids]) -> bool:
        """Whether a value is worked out from these; what its operator made beside it may be among them.

        layer_norm ─► y, mean       graph: x ─► ReduceMean ─► mean, and y from x and mean
        """
        return bool(sources) and traced[number] <= sources <= traced[number] | self._made_with[number]

    def computed_numbers(self, sample: Sample) -> Iterator[int]:
        """The numbers of what holds the same and was computed: what only looks at a value is no result of it."""
        for number in self._index.alike(sample):
            issued = self._sources.issued.get(number)
            if issued is not None and issued.new and not issued.op.view:
                yield number


def is_telling(sample: Sample) -> bool:
    return sample.distinctive and sample.kind in ("float", "int")


class Resynchronizer:
    """One run of a file, in which values are exchanged. It is shown every value of the main graph, in their order.

    dataflow  of the model's run
    held      numbers of what the file made in a run in which nothing was exchanged: that is not missing
    kept      whether the content of a value of the model can be had
    rejected  exchanges that led to nothing
    """

    def __init__(
        self,
        graph: Graph,
        computed: Collection[str],
        dataflow: ModelDataflow,
        held: Collection[int],
        kept: Callable[[int], bool],
        rejected: Collection[Exchange] = (),
    ) -> None:
        """computed  keys of the nodes that depend on the content of what the model is fed"""
        self._graph, self._computed, self._dataflow = graph, computed, dataflow
        self._kept, self._rejected = kept, rejected
        self._held, self._held_ids = set(held), set(map(dataflow.id_of, held))
        self.exchanged: dict[str, Exchange] = {}
        self._choices: dict[Exchange, _Choice] = {}
        self._made_ids: set[int] = set()  # of what nodes made by themselves
        self.confirmed: set[Exchange] = set()
        # By value: the ids of what it holds; where it holds nothing of the model's, of what it was computed from.
        self._sources: dict[str, _Ids] = {}
        self._known: set[str] = set()
        # The exchanges that lead to a value over nothing that was computed from them in the model, by value and by id.
        self._behind: dict[str, frozenset[Exchange]] = {}
        self._behind_ids: dict[int, frozenset[Exchange]] = {}

    @property
    def unconfirmed(self) -> list[Exchange]:
        """Exchanges of which something was computed, and nothing that the model has; in their order."""
        made = (exchange for exchange in self.exchanged.values() if exchange not in self.confirmed)
        return [exchange for exchange in made if any(map(self.is_worked_out, self._made_of(exchange.name)))]

    @property
    def ambiguous(self) -> set[Exchange]:
        """Exchanges that were made and could as well have been others, with these.

        relu(fc1(x)) + relu(fc2(x)), with wrong weights: given what fc2 makes, the first relu makes what the second does

        What the file made after all, or lacks in another place, is not missing in this one.
        """
        chosen = {item: self._choices[item] for item in self.exchanged.values() if item in self._choices}
        ambiguous: set[Exchange] = set()
        for exchange, choice in chosen.items():
            elsewhere = (item for item, other in chosen.items() if other.sources != choice.sources)
            settled = self._made_ids.union(self._ids_of(elsewhere), self._ids_of([exchange]))
            missing = {number for number in choice.rivals if self._dataflow.id_of(number) not in settled}
            if missing:
                ambiguous |= {exchange, *(Exchange(exchange.name, number) for number in missing)}
        return ambiguous

    def _ids_of(self, exchanges: Iterable[Exchange]) -> _Ids:
        return frozenset(self._dataflow.id_of(item.number) for item in exchanges if item.number is not None)

    @property
    def known(self) -> int:
        """How many values of the file hold what the model made of its inputs."""
        return len(self._known - self.doubtful)

    @property
    def doubtful(self) -> set[str]:
        """Values that exchanges lead to which nothing confirmed: what they hold may be no more than what was guessed.

        relu(h) is h where h is not negative: whoever made what took the place of h has not made what relu makes
        """
        unconfirmed = set(self.unconfirmed)
        return {name for name, behind in self._behind.items() if not behind.isdisjoint(unconfirmed)}

    def choose(self, samples: Mapping[str, Sample], *, is_last: bool) -> Exchange | None:
        """The first of successive values whose place another one is to take, if there is any.

        It is to be decided later if something is between the first of these values and it: more is seen of what follows
        it when it is the first. is_last: nothing follows.
        """
        window = {name: sample for name, sample in samples.items() if self.is_worked_out(name)}
        ids = {name: self._dataflow.ids_like(sample) for name, sample in window.items()}
        held = self._held.union(*map(self._dataflow.numbers_like, window.values()))
        unknown = [name for name, seen in window.items() if not ids[name] and seen.kind == "float" and is_telling(seen)]
        if not unknown:
            return None
        traced = self._dataflow.trace_sources(self._held_ids.union(*ids.values()))
        sources = dict(self._sources)
        for name in window:
            sources[name] = ids[name] or self._sources_of(name, sources)
        lost = self._find_lost(window, ids)
        fitting = {
            name: [
                number
                for number in self._dataflow.by_shape.get(window[name].shape, ())
                if number not in held
                and self._dataflow.is_made_from(number, sources[name], traced)
                and (name in lost or distance(window[name], self._dataflow.samples[number]) < _NEAR)
                and self._kept(number)
                and Exchange(name, number) not in self._rejected
            ]
            for name in unknown
        }
        first = next((name for name, numbers in fitting.items() if numbers), None)
        if first is None:
            return None
        producers = self._graph.producers
        if not is_last and producers[first] is not producers.get(next(iter(samples))):
            return Exchange(first)
        picked = self._pick_pair(first, window, fitting)
        numbers = set(fitting[picked.name])
        is_like = any(
            number == picked.number and self._measure(window, picked.name, number) < _NEAR for number in numbers
        )
        self._choices[picked] = _Choice(sources[picked.name], _NONE if is_like else frozenset(numbers))
        return picked

    def see(self, name: str, sample: Sample) -> None:
        """A value that counts; what was exchanged comes with what took its place."""
        if not self.is_worked_out(name):
            return
        ids = self._dataflow.ids_like(sample)
        exchange = self.exchanged.get(name)
        if exchange is not None and exchange.number is not None:
            ids |= {self._dataflow.id_of(exchange.number)}
        else:
            self._made_ids |= ids
        self._sources[name] = ids or self._sources_of(name, self._sources)
        if ids:
            self._known.add(name)
            self._held_ids |= ids
            self._held |= self._dataflow.numbers_like(sample)
        self._follow(name, sample, ids)

    def _follow(self, name: str, sample: Sample, ids: _Ids) -> None:
        """Note which exchanges lead to a value, and which of them it confirms."""
        if exchange := self.exchanged.get(name):
            self._behind[name] = frozenset({exchange})
        else:
            maker = self._graph.producers.get(name)
            reads = maker.inputs if maker else ()
            behind = frozenset().union(*(self._behind.get(read, ()) for read in reads))
            # What is passed on as it is was not computed from what was exchanged: it is that.
            read_ids = _NONE.union(*(self._sources.get(read, _NONE) for read in reads if read in self._known))
            computed = self._dataflow.computed_numbers(sample) if behind else ()
            results = [number for number in computed if self._dataflow.id_of(number) not in read_ids]
            if results:
                traced = self._dataflow.trace_sources(self._held_ids)
                given = frozenset(source for number in results for source in traced[number])
                leading = (self._behind_ids.get(source, frozenset()) for source in given)
                self.confirmed |= behind & frozenset().union(*leading)
            self._behind[name] = frozenset() if results else behind
        for known in ids:
            self._behind_ids[known] = self._behind_ids.get(known, frozenset()) | self._behind[name]

    def is_worked_out(self, name: str) -> bool:
        """Whether it is a value of the main graph that depends on what the model is fed, or what it is fed."""
        maker = self._graph.producers.get(name)
        return name in self._graph.fed_inputs if maker is None else maker.graph == MAIN and maker.key in self._computed

    def _sources_of(self, name: str, sources: Mapping[str, _Ids]) -> _Ids:
        maker = self._graph.producers.get(name)
        return _NONE.union(*(sources.get(read, _NONE) for read in (maker.inputs if maker else ())))

    def _made_of(self, name: str) -> list[str]:
        return [value for node in self._graph.consumers.get(name, ()) for value in node.outputs]

    def _find_lost(self, window: Mapping[str, Sample], ids: Mapping[str, _Ids]) -> set[str]:
        """Values that hold nothing of the model's, and lead to such as far as is known.

        What is inside of an operator that was broken down leads to its result. So does a wrong value that a norm makes
        good again; but that looks like the right one.
        """
        lost: set[str] = set()
        outputs = set(self._graph.outputs)
        for name in reversed(list(window)):
            if ids[name]:
                continue
            made = self._made_of(name)
            is_end = name in outputs or any(value not in window and self.is_worked_out(value) for value in made)
            if (is_end and is_telling(window[name])) or not lost.isdisjoint(made):
                lost.add(name)
        return lost

    def _pick_pair(self, first: str, window: Mapping[str, Sample], fitting: Mapping[str, Sequence[int]]) -> Exchange:
        """The earliest pair that looks alike; else the first value, and what the model made first."""
        apart = partial(self._measure, window)
        for number in fitting[first]:
            names = [name for name, numbers in fitting.items() if number in numbers]
            name = min(names, key=lambda name: apart(name, number))
            nearest = min(fitting[name], key=lambda other: apart(name, other))
            if nearest == number and apart(name, number) < _NEAR:
                return Exchange(name, number)
        return Exchange(first, fitting[first][0])

    def _measure(self, window: Mapping[str, Sample], name: str, number: int) -> float:
        """How far apart a value of the file and one of the model are."""
        return distance(window[name], self._dataflow.samples[number])
