"""What is known of a file that a tool made, from the names that the tool left in it.

This is no part of the relinker, and knows nothing of it: a value that kept its name is the value of that name, and what
a node does is everything between the named values that it reads and the one that it makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cached_property

import numpy as np

from measure.lineage.surgery import original_name
from modelexport.graph.difference import measure
from modelexport.graph.index import SHAPE_READERS, Graph, Node
from modelexport.record.hierarchy import ModuleCall
from modelexport.record.provenance import Provenance
from modelexport.record.results.verification import Tolerance

# Operators that hand on what they read, in another type or layout.
_PASSING = frozenset(
    {
        "Identity",
        "Cast",
        "CastLike",
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "ReorderInput",
        "ReorderOutput",
    }
)
_LARGEST = 500
# Nodes in a row that a tool is thought to take in.
_STEPS = 4
# Decibels. Above the second, a value without a name is one from before beyond doubt.
_NEARER = 3.0
_SAME = 40.0

Values = Mapping[str, np.ndarray]


def is_passing(node: Node) -> bool:
    return node.op_type in _PASSING


def _varying(graph: Graph) -> frozenset[str]:
    """Values that depend on what the model is given, if only on its shape."""
    varying = set(graph.inputs) - set(graph.initializers)
    for node in graph.nodes:
        if not varying.isdisjoint(node.inputs):
            varying.update(filter(None, node.outputs))
    return frozenset(varying)


def tells(array: np.ndarray) -> bool:
    """Whether a tensor can be told from others: floats that are not all the same."""
    return array.dtype.kind == "f" and array.size > 1 and bool((array.ravel() != array.ravel()[0]).any())


def nearness(left: np.ndarray, right: np.ndarray) -> float:
    """In decibels, of two tensors that can be told from others; less than anything else if these cannot be compared.

    Means are taken away: many tensors have nearly the same number everywhere, and are not the same for that.
    """
    if left.size != right.size or not (tells(left) and tells(right)):
        return -np.inf
    a, b = (array.astype(np.float64).ravel() for array in (left, right))
    return measure(a - a.mean(), b - b.mean(), Tolerance()).sqnr


class Truth:
    def __init__(self, before: tuple[Graph, Values], after: tuple[Graph, Values], record: Provenance) -> None:
        """after  with all the names that the tool left"""
        self._before, self._values_before = before
        self._after, self._values_after = after
        self._record = record
        # What is asked of each node once for every share of hidden names, and of each pair of tensors very often.
        self._contributors: dict[str, frozenset[ModuleCall]] = {}
        self._rates: dict[tuple[str, int], float] = {}
        self._possible: dict[str, tuple[Node, ...]] = {}
        for node in self._after.nodes:  # what each one reads is known by then
            self._possible[node.key] = self._possible_origins(node)

    def origin(self, node: Node) -> Node | None:
        """The node before that made the value of the same name. A cast or quantizer is not what it is put behind."""
        return next(iter(self._possible[node.key]), None)

    def _possible_origins(self, node: Node) -> tuple[Node, ...]:
        named = self._before.producers.get(self._name(node.key))
        other = named is not None and named.op_type != node.op_type
        if named is None or (other and (is_passing(named) or is_passing(node))):
            return ()
        mine = self._values_after.get(node.key)
        return (named,) if mine is None or not tells(mine) else self._by_value(node, named, mine)

    def _by_value(self, node: Node, named: Node, mine: np.ndarray) -> tuple[Node, ...]:
        """A name may lie: a quantizer that does what came next leaves that one's name to the value before it, and a
        weight that takes in what came next may leave its own. Where values hardly tell, the operator may be right."""
        between = dict.fromkeys((*self._between(node, named), *self._between(node, named, by_name=True)))
        rates = {key: self._nearness(key, mine) for key in (*between, *self._behind(named))}
        near = [key for key, rate in rates.items() if rate >= max(rates.values()) - _NEARER]
        # One that reads more than it did has taken in something, whatever its name is: a norm in a new bias.
        if named.key in near and not (named.op_type == node.op_type and len(node.inputs) > len(named.inputs)):
            near = [key for key in between if key in near and self._before.by_key[key].op_type == node.op_type]
            near = [named.key] if named.op_type == node.op_type else [named.key, *near]
        return tuple(map(self._before.by_key.__getitem__, sorted(near, key=rates.__getitem__, reverse=True)))

    def _behind(self, node: Node) -> Iterator[str]:
        """A node, and those behind it that each change nothing but what the last one made."""
        for _ in range(_STEPS):
            yield node.key
            readers = self._before.consumers.get(node.key, ())
            if len(readers) != 1 or len(self._before.computed.intersection(readers[0].inputs)) != 1:
                break
            node = readers[0]

    def _nearness(self, key: str, mine: np.ndarray) -> float:
        pair = key, id(mine)  # these tensors stay where they are
        if pair not in self._rates:
            array = self._values_before.get(key)
            self._rates[pair] = -np.inf if array is None else nearness(array, mine)
        return self._rates[pair]

    def origins(self, node: Node) -> set[str]:
        """The keys of all that made it: a tool may put the name of what did nothing on the node before it."""
        return {key for origin in self._possible[node.key] for key in self._idle_above(origin)}

    def _idle_above(self, origin: Node) -> set[str]:
        idle_keys, here = {origin.key}, origin
        while self._is_idle(here.key):
            made = self._numbers(here.key)
            read = next(value for value in here.inputs if self._numbers(value) == made)
            if read not in self._before.producers:
                break
            here = self._before.producers[read]
            idle_keys.add(here.key)
        return idle_keys

    def modules(self, node: Node) -> set[ModuleCall]:
        """The modules that may be named for a node; none if names do not tell.

        Of the same operator, that of the node before, or the one around all that it took over; of another, the latter.
        """
        groups = [[key] for key in self.origins(node) if self._before.by_key[key].op_type == node.op_type]
        groups += filter(None, self._works(node))
        return {call for call in map(self._module, groups) if call is not None}

    def merged(self, node: Node, sources: Collection[str]) -> ModuleCall | None:
        """The module around all that a node is said to stand for besides the true one.

        None if there are no others, or if not all of them made the same as the true one and are gone otherwise.
        """
        origin = self.origin(node)
        if origin is None or not set(sources) - {origin.key}:
            return None
        return self._module(sources) if {origin.key, *self._merged(origin.key)}.issuperset(sources) else None

    def owners(self, node: Node) -> frozenset[ModuleCall]:
        """Every module that a node surely works for; none if names do not tell. What did nothing is nobody's work."""
        working = ((key for key in work if not self._is_idle(key)) for work in self._works(node))
        return min((frozenset(self._owners(work)) for work in working), key=len, default=frozenset())

    def contributors(self, node: Node) -> frozenset[ModuleCall]:
        """Every module that may have a part in what a node makes; none if names do not tell.

        That is who owns a node between the nearest named values above and below it, has made the same as such a node,
        or has computed a constant for it. A node that was renamed does some of that work, and nothing else:

            before    a ──► MatMul (fc) ──► Add (fc) ──► Erf (act) ──► Mul (act) ──► b ──► MatMul (out)
            after     a ──► MatMul ──► ? ──► BiasGelu ──► b ──► MatMul                ? is no work of `out`

        Where tools leave few names, that is much. A value without a name has one if its numbers are those of a node in
        this range.
        """
        if node.key not in self._contributors:
            self._contributors[node.key] = self._find_contributors(node)
        return self._contributors[node.key]

    def _find_contributors(self, node: Node) -> frozenset[ModuleCall]:
        keys = self._work_of_known(node, ())
        known = set(self._work_of_known(node, keys))
        keys = [key for key in keys if key in known] or keys
        maker = self._after.producers.get(node.inputs[0]) if is_passing(node) else None
        if keys and maker is not None:
            # What a quantizer reads may have the name of what it makes: it clips in the place of an activation.
            keys += self._slice(self._possible[maker.key], self._known_above(maker, keys))
        equal = (other for key in keys for other in self._merged(key))
        return frozenset(self._owners((*keys, *self._constant_work(keys), *equal)))

    def _work_of_known(self, node: Node, range_: Collection[str]) -> list[str]:
        """The keys of nodes between the nearest known values: known by name, or by numbers among some nodes."""
        ends = self._ends(node, range_)
        if not ends:
            ends = tuple(origin for reader in self._known_below(node, range_) for origin in self._ends(reader, range_))
        return self._slice(ends, self._known_above(node, range_)) if ends else []

    def _made_in(self, range_: Collection[str], value: str) -> list[Node]:
        """Those of some nodes that made the numbers of a value after, in its shape if one of them did that."""
        mine = self._values_after.get(value)
        if mine is None or not range_ or not tells(mine):
            return []
        rates = {key: self._nearness(key, mine) for key in range_}
        least = max(_SAME, max(rates.values()) - _NEARER)
        same = [key for key, rate in rates.items() if rate >= least]
        alike = [key for key in same if self._values_before[key].shape == mine.shape]
        return [self._before.by_key[key] for key in alike or same]

    def _makers(self, node: Node, range_: Collection[str]) -> tuple[Node, ...]:
        """The nodes before that made what a node makes, by name or by numbers. Numbers it hands on tell no place."""
        mine, read = self._values_after.get(node.key), map(self._values_after.get, node.inputs)
        hands_on = mine is not None and any(each is not None and nearness(each, mine) >= _SAME for each in read)
        return self._possible[node.key] or (() if hands_on else tuple(self._made_in(range_, node.key)))

    def _ends(self, node: Node, range_: Collection[str]) -> tuple[Node, ...]:
        """Nodes before that may have made what a node makes: a Split makes what several made, by name or by numbers."""
        made = list(self._makers(node, range_))
        for value in node.outputs[1:] if made else ():
            named = self._before.producers.get(self._name(value))
            others = self._made_in(range_, value) if named is None else [named]
            made += (other for other in others if other not in made)
        return tuple(made)

    def _known_below(self, node: Node, range_: Collection[str]) -> list[Node]:
        """The nearest nodes below one that made known values; none if one of its values is not followed."""
        nearest: dict[str, Node] = {}
        waiting, seen = [node], {node.key}
        while waiting:
            readers = (reader for value in waiting.pop().outputs for reader in self._after.consumers.get(value, ()))
            # What asks for a shape says nothing about who makes the numbers.
            for reader in (each for each in readers if each.operator not in SHAPE_READERS):
                if self._makers(reader, range_):
                    nearest[reader.key] = reader
                elif reader.key not in seen:
                    seen.add(reader.key)
                    waiting.append(reader)
            if len(seen) > _LARGEST:
                return []
        return list(nearest.values())

    def _known_above(self, node: Node, range_: Collection[str]) -> set[str]:
        """The nearest known values before that a node is computed from: the first that each may be."""
        sources: set[str] = set()
        waiting, seen = list(node.inputs), set(node.inputs)
        while waiting:
            value = waiting.pop()
            known = self._known(value) if value else set()
            known = known or {origin.key for origin in self._made_in(range_, value)}
            sources.update(sorted(known, key=self._position)[:1])
            maker = None if known else self._after.producers.get(value)
            above = [read for read in maker.inputs if read not in seen] if maker is not None else []
            seen.update(above)
            waiting += above
        return sources

    def _position(self, value: str) -> int:
        return self._before.producers[value].position if value in self._before.producers else -1

    def _slice(self, ends: Collection[Node], read: Collection[str]) -> list[str]:
        """The keys of nodes from some values down to others; nothing if it goes on and on.

        What made the same as one of those others may have been merged with it: it is the last. So is what asks for a
        shape: who makes the numbers has no part in it.
        """
        same = {self._numbers(value) for value in read} - {None}
        computing: dict[str, None] = {}
        waiting = list(ends)
        while waiting:
            origin = waiting.pop()
            if origin.key in computing:
                continue
            computing[origin.key] = None
            if origin.operator in SHAPE_READERS or (origin not in ends and self._numbers(origin.key) in same):
                continue
            above = [value for value in origin.inputs if value not in read]
            waiting += (self._before.producers[value] for value in above if value in self._before.producers)
            if len(computing) > _LARGEST:
                return []
        return list(computing)

    def _constant_work(self, keys: Iterable[str]) -> Iterator[str]:
        """Nodes that make constants for others out of constants."""
        waiting, seen = [self._before.by_key[key] for key in keys], set(keys)
        while waiting:
            for maker in self._before.predecessors(waiting.pop()):
                if maker.key not in self._varying[0] and maker.key not in seen:
                    seen.add(maker.key)
                    waiting.append(maker)
                    yield maker.key

    def work(self, node: Node) -> list[str]:
        """The nodes before, by key, between what a node reads and what it makes. Nothing where a name is missing."""
        return next(iter(self._works(node)), [])

    def _works(self, node: Node) -> list[list[str]]:
        return [self._between(node, origin) for origin in self._possible[node.key]]

    def _between(self, node: Node, origin: Node, *, by_name: bool = False) -> list[str]:
        """by_name: from the values of those names that the node reads, whatever is as near as these"""
        # Of a node that works on shapes, all that goes on is of interest; of others, what happens to the data.
        on_data = node.key in self._after.computed
        before, after = (self._before.computed, self._after.computed) if on_data else self._varying

        find = self._named if by_name else self._known
        # What has become a constant under its own name is not computed here.
        constants = {self._name(value) for value in node.inputs if value not in after}
        known = [find(value) for value in node.inputs if value in after]
        known = [{value for value in each if not self._is_added(value, constants)} or each for each in known]
        if not all(known):
            return []
        read = constants.union(*known)
        # What made the same as one of these may have been merged with it.
        same = {self._numbers(value) for value in read} - {None}
        computing: dict[str, None] = {}
        waiting = [origin]
        while waiting:
            source = waiting.pop()
            if source.key in computing:
                continue
            computing[source.key] = None
            above = [value for value in source.inputs if value in before and value not in read]
            above = [value for value in above if self._numbers(value) not in same or self._is_added(value, constants)]
            if len(computing) > _LARGEST or any(value not in self._before.producers for value in above):
                return []  # the tool computes it from something else
            waiting += (self._before.producers[value] for value in above)
        return list(computing)

    def _is_added(self, value: str, constants: Collection[str]) -> bool:
        """Whether a constant that is still read made a value from its equal: a bias of zero that is in a BiasGelu."""
        maker = self._before.producers.get(value)
        if maker is None or maker.key != value or not self._is_idle(value):
            return False
        makers = map(self._before.producers.get, maker.inputs)
        copied = (each.inputs[0] for each in makers if each is not None and is_passing(each))
        return not set(constants).isdisjoint((*maker.inputs, *copied))

    def _merged(self, key: str) -> Iterator[str]:
        """Nodes that made the same as another in the same way, and whose names are gone."""
        for other in self._equal.get((self._before.by_key[key].op_type, self._numbers(key)), ()):
            if other != key and other not in self._names_after:
                yield other

    @cached_property
    def _equal(self) -> dict[tuple[str, bytes | None], list[str]]:
        equal: dict[tuple[str, bytes | None], list[str]] = {}
        for node in self._before.nodes:
            if node.key in self._values_before:
                equal.setdefault((node.op_type, self._numbers(node.key)), []).append(node.key)
        return equal

    @cached_property
    def _varying(self) -> tuple[frozenset[str], frozenset[str]]:
        return _varying(self._before), _varying(self._after)

    @cached_property
    def _names_after(self) -> frozenset[str]:
        return frozenset(map(self._name, self._after.producers))

    def _is_idle(self, key: str) -> bool:
        """Whether a node made the numbers that it read."""
        made = self._numbers(key)
        return made is not None and any(self._numbers(value) == made for value in self._before.by_key[key].inputs)

    def _numbers(self, key: str) -> bytes | None:
        """What a node made, or any other value, whatever its shape; None if that is not known."""
        array = self._values_before.get(key)
        return None if array is None else array.dtype.str.encode() + array.tobytes()

    def _known(self, value: str) -> set[str]:
        """The value before of the same name, looked for behind casts and quantizers; nothing if there is none.

        Where names lie, it is the one that its maker made, or one right behind it, and all of these that are so near
        that values do not tell. What a quantizer does is done when its result is read.
        """
        mine = self._values_after.get(value)
        value = self._behind_passing(value)
        named, origins = self._name(value), self._possible.get(value, ())
        if named not in self._values:
            return set()
        if mine is None or not origins or not tells(mine):
            return {named}
        behind = self._behind(self._before.by_key[named]) if named in self._before.by_key else ()
        rates = {key: self._nearness(key, mine) for key in (named, *(origin.key for origin in origins), *behind)}
        return {key for key, rate in rates.items() if rate >= max(rates.values()) - _NEARER}

    def _named(self, value: str) -> set[str]:
        return {self._name(self._behind_passing(value))} & self._values

    def _behind_passing(self, value: str) -> str:
        """The first value from one upwards that has the name of one before; the last that was looked at if none has."""
        while self._name(value) not in self._values:
            maker = self._after.producers.get(value)
            if maker is None or not is_passing(maker):
                break
            value = maker.inputs[0]
        return value

    @cached_property
    def _values(self) -> frozenset[str]:
        return frozenset((*self._before.producers, *self._before.inputs, *self._before.initializers))

    def _name(self, value: str) -> str:
        return original_name(value)

    def _module(self, keys: Iterable[str]) -> ModuleCall | None:
        owners = set(self._owners(keys))
        return self._record.hierarchy.common_ancestor(owners) if owners else None

    def _owners(self, keys: Iterable[str]) -> Iterator[ModuleCall]:
        for key in keys:
            yield from self._record.nodes[key].attribution.owners
