"""First divergence: from pairs of values to what each call's numbers say, and to the call where they go wrong first.

    embed ── ok ──► layer.0 ── ok ──► layer.1 ── 12 dB ──► layer.2 ── 11 dB ──► head
                                      DIVERGES             FOLLOWS              FOLLOWS

The first wrong value in the order of the file is the one that nothing wrong went into. The same for NaN and infinity:
the node that makes one of what has none (`find_nonfinite_origins`).

A module that agrees within the tolerance may still lose more than rounding explains (`find_sudden_losses`):

    in 145 dB ──► LayerNorm ──► out 106 dB      epsilon 1e-5 in the place of 1e-12

A softmax, a difference of near numbers or a norm of data that hardly varies loses as much by rounding alone. So what is
suspicious is held against a run with other last bits (`capture/rounding.py`), which is made only for that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from modelexport.graph.algorithms import group_by_key
from modelexport.graph.crossings import Crossings, is_fused
from modelexport.graph.index import Graph
from modelexport.graph.sample import INF, NAN, Sample
from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.record.results.verification import CallNumbers, Difference, Divergence, NotFinite, Status, SuddenLoss
from modelexport.record.signals import CallTensors
from modelexport.verify.numbers import Pairing, ValueComparison

# Once something is known to be wrong, it is looked for where it begins, which may be below the tolerance: modules lose
# a few decibels to rounding and, in single precision, mostly stay above 110; 98 was seen after a steep softmax.
_SUSPICIOUS, _SUDDEN = 95.0, 20.0
# The other last bits change about eight times what a kernel rounds. Of the modules of eleven correct files none was
# further from the reference than 0.85 times that.
_BEYOND = 2.0

# By number of a value: by how much rounding changes it; None where that is not known.
Noise = Callable[[int], "float | None"]


def is_rounding(difference: Difference | None) -> bool:
    return difference is None or difference.sqnr >= _SUSPICIOUS


@dataclass(frozen=True)
class ComparedCall:
    """A call with what was found of its inputs and outputs."""

    item: CallTensors
    inputs: tuple[Pairing, ...]
    outputs: tuple[Pairing, ...]

    def returned_right(self, pairing: Pairing) -> bool:
        """Whether it returned this value, or what should be in its place, and that is right."""
        right = [output for output in self.outputs if output.difference.agrees]
        return any(output.value == pairing.value or output.number == pairing.number for output in right)

    @property
    def numbers_in(self) -> Difference | None:
        return Difference.worst(pairing.difference for pairing in self.inputs)

    @property
    def numbers_out(self) -> Difference | None:
        return Difference.worst(pairing.difference for pairing in self.outputs)


def compare_calls(calls: Iterable[CallTensors], numbers: ValueComparison) -> dict[ModuleCall, ComparedCall]:
    return {
        item.call: ComparedCall(item, tuple(numbers.inputs_of(item)), tuple(numbers.outputs_of(item))) for item in calls
    }


def summarize_calls(compared: Iterable[ComparedCall], provenance: Provenance) -> tuple[CallNumbers, ...]:
    calls = list(compared)
    fusions = _Fusions(calls, provenance)
    return tuple(_summarize(call, provenance.hierarchy, fusions) for call in calls)


class _Fusions:
    """With whom calls share a node, whose result then is in no value of its own."""

    def __init__(self, compared: Sequence[ComparedCall], provenance: Provenance) -> None:
        self._order = provenance.hierarchy.call_order
        self._partners = _find_partners(provenance, self._order)
        self._given = {call.item.call: call.numbers_in for call in compared}
        # A module that hands on what it is given has no node, and shares the fate of what it was given.
        self._by_number: dict[int, tuple[ModuleCall, ...]] = {}
        for call in compared:
            for number in call.item.outputs:
                self._by_number.setdefault(number, self._partners.get(call.item.call, ()))

    def partners_of(self, item: CallTensors) -> tuple[ModuleCall, ...]:
        own = self._partners.get(item.call, ())
        return own or tuple(dict.fromkeys(call for number in item.outputs for call in self._by_number[number]))

    def given_to(self, call: ModuleCall) -> Difference | None:
        """What goes into the node that a call shares with those before it."""
        start = self._order.get(call, -1)
        before = [partner for partner in self._partners.get(call, ()) if self._order.get(partner, start) < start]
        return Difference.worst(given for partner in before if (given := self._given.get(partner)) is not None)


def _find_partners(provenance: Provenance, order: Mapping[ModuleCall, int]) -> dict[ModuleCall, tuple[ModuleCall, ...]]:
    """By call: those outside of it whose work is in one node with its own, or with that of a module inside of it."""
    hierarchy = provenance.hierarchy
    stack = hierarchy.stack
    groups = {frozenset(entry.attribution.owners) for entry in provenance.nodes.values()}
    outside: dict[ModuleCall, set[ModuleCall]] = {}
    for owners in groups:
        if is_fused(owners, hierarchy):
            for call in {call for owner in owners for call in stack(owner)}:
                outside.setdefault(call, set()).update(owner for owner in owners if call not in stack(owner))

    def start(call: ModuleCall) -> int:
        return order.get(call, -1)

    return {call: tuple(sorted(partners, key=start)) for call, partners in outside.items() if partners}


def find_first_divergence(
    compared: Mapping[ModuleCall, ComparedCall],
    numbers: ValueComparison,
    graph: Graph,
    crossings: Crossings,
    provenance: Provenance,
) -> Divergence | None:
    """The first wrong value in the order of the file: nothing that it is made from is known to be wrong.

    Whatever crosses a call is looked at: what a module returned, and what it hands to a module that it calls.
    """
    differences = (item for call in compared.values() for item in (call.numbers_in, call.numbers_out))
    if all(difference is None or difference.agrees for difference in differences):
        return None
    # Else the last bits of a coarse type look like something sudden, or what somebody allowed.
    sharp = not numbers.is_coarse and not numbers.tolerance.is_chosen
    wrong = _wrong_values(compared, numbers, crossings, provenance.hierarchy, sharp)
    made = [value for value in wrong if value in graph.producers]
    first = min(made, key=lambda value: graph.producers[value].position, default=None)
    if first is None:
        return None
    call, difference = wrong[first]
    owners = _owners(first, call, graph, provenance)
    if call in compared and not compared[call].inputs:
        # Nobody knows what it was given. Whoever made that may be the culprit as well, and comes first.
        given = numbers.doubtful_inputs_of(compared[call].item)
        makers = (maker for pairing in given for maker in crossings.made.get(pairing.value, ())[-1:])
        owners = tuple(dict.fromkeys((*makers, *owners)))
    classes = tuple(class_name(provenance.hierarchy, owner) for owner in owners)
    inputs = compared[call].numbers_in if call in compared else None
    return Divergence(owners, classes, first, inputs, difference, graph.producers[first].name)


def _wrong_values(
    compared: Mapping[ModuleCall, ComparedCall],
    numbers: ValueComparison,
    crossings: Crossings,
    hierarchy: Hierarchy,
    sharp: bool,
) -> dict[str, tuple[ModuleCall, Difference]]:
    """Wrong values with the innermost call that is to blame for them, and how wrong they are."""
    returned = {number: call.item.call for call in reversed(list(compared.values())) for number in call.item.outputs}
    wrong: dict[str, tuple[ModuleCall, Difference]] = {}
    for call in compared.values():
        for pairing in call.outputs:
            if _is_origin(call.numbers_in, pairing.difference, sharp):
                wrong.setdefault(pairing.value, (call.item.call, pairing.difference))
        for pairing in call.inputs:
            made_in = crossings.made.get(pairing.value, ())[-1:]
            if pairing.value in numbers.known:
                # Somebody else's result in the place of what is missing: whoever was to make that did nothing.
                made_in = (returned.get(pairing.number, *made_in),) if made_in else ()
            if not made_in:
                continue
            maker = compared.get(made_in[0])
            if _is_origin(None if maker is None else maker.numbers_in, pairing.difference, sharp):
                blamed = made_in[0]
                if maker is not None and maker.returned_right(pairing):
                    # It did its work, and whoever called this one handed it to the wrong place.
                    blamed = next(iter(hierarchy.stack(call.item.call)[-2:-1]), blamed)
                wrong.setdefault(pairing.value, (blamed, pairing.difference))
    return wrong


def class_name(hierarchy: Hierarchy, call: ModuleCall) -> str:
    module = hierarchy.modules.get(call.path)
    return "" if module is None else module.class_name


def _is_origin(inputs: Difference | None, outputs: Difference, sharp: bool) -> bool:
    given = math.inf if inputs is None else inputs.sqnr
    sudden = sharp and outputs.sqnr < _SUSPICIOUS and outputs.sqnr < given - _SUDDEN
    return not outputs.agrees or sudden


def _owners(value: str, call: ModuleCall, graph: Graph, provenance: Provenance) -> tuple[ModuleCall, ...]:
    """All modules whose work is in the node that made a wrong value, if it does the work of several."""
    maker = graph.producers.get(value)
    owners = () if maker is None else provenance.nodes[maker.key].attribution.owners
    return tuple(dict.fromkeys((call, *owners))) if len(owners) > 1 and call in owners else (call,)


def _summarize(compared: ComparedCall, hierarchy: Hierarchy, fusions: _Fusions) -> CallNumbers:
    call, outputs = compared.item.call, compared.numbers_out
    inputs = fusions.given_to(call) if compared.numbers_in is None else compared.numbers_in
    name = class_name(hierarchy, call)
    if outputs is not None:
        wrong = Status.DIVERGES if inputs is None or inputs.agrees else Status.FOLLOWS
        return CallNumbers(call, name, inputs, outputs, Status.OK if outputs.agrees else wrong)
    fused_with = fusions.partners_of(compared.item)
    reason = "fused with other modules" if fused_with else "what it returned is not in the graph"
    if not compared.item.outputs:
        reason = "it returned no tensor that can be looked at"
    return CallNumbers(call, name, inputs, outputs, Status.NOT_COMPARED, reason, fused_with)


def merge_runs(samples: Sequence[Sequence[CallNumbers]]) -> tuple[CallNumbers, ...]:
    """The worst of several runs, call by call."""
    order = {Status.DIVERGES: 0, Status.FOLLOWS: 1, Status.OK: 2, Status.NOT_COMPARED: 3}

    def rank(numbers: CallNumbers) -> tuple[int, float]:
        return order[numbers.status], math.inf if numbers.outputs is None else numbers.outputs.sqnr

    by_call = group_by_key((numbers.call, numbers) for run in samples for numbers in run)
    # One run as a whole: what went in and what came out belong together.
    return tuple(min(runs, key=rank) for runs in by_call.values())


def find_nonfinite_origins(
    graph: Graph, provenance: Provenance, samples: Mapping[str, Sample], expected: Callable[[str, str], bool]
) -> Iterator[NotFinite]:
    """Nodes that make a NaN of what has none, or an infinity of what is finite.

    expected  whether a value has such a thing in the run that it is compared with as well
    """
    troubled = {value: sample.trouble for value, sample in samples.items() if sample.trouble}
    for node in graph.nodes:
        for kind in (NAN, INF):
            made = [value for value in node.outputs if troubled.get(value) == kind]
            # A mask is full of infinities, and what it is added to or chosen from becomes so.
            spreading = (NAN,) if kind == NAN else (NAN, INF)
            reads_trouble = any(troubled.get(value) in spreading for value in node.inputs)
            if made and (kind == NAN or node.key in graph.computed) and not reads_trouble:
                owners = provenance.nodes[node.key].attribution.owners
                yield NotFinite(kind, node.key, owners, all(expected(value, kind) for value in made))


def find_sudden_losses(
    compared: Mapping[ModuleCall, ComparedCall], calls: Sequence[CallNumbers], hierarchy: Hierarchy, noise: Noise
) -> tuple[SuddenLoss, ...]:
    """Innermost modules that are given what agrees up to rounding, and return what does not."""
    suspicious = [item for item in calls if (item.lost or 0.0) > _SUDDEN]
    losing = [item for item in suspicious if _is_more_than_rounding(compared[item.call], noise)]
    around = {above for item in losing for above in hierarchy.stack(item.call)[:-1]}
    return tuple(
        SuddenLoss(item.call, item.class_name, item.inputs, item.outputs)
        for item in losing
        if item.call not in around and item.inputs is not None and item.outputs is not None
    )


def _is_more_than_rounding(call: ComparedCall, noise: Noise) -> bool:
    """Not one that is given what is wrong already: that one follows."""
    return any(_exceeds(output, noise) for output in call.outputs) and not any(
        _exceeds(given, noise) for given in call.inputs
    )


def _exceeds(pairing: Pairing, noise: Noise) -> bool:
    rounding = noise(pairing.number)
    return rounding is not None and pairing.difference.max_abs > _BEYOND * rounding
