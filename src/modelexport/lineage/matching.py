"""Pairing the computations of two graphs, from what is known to what follows from it.

An *anchor* says that a class of values after is a class of values before. A *match* says that a node after does what a
node before did. Each anchor may make matches possible, and each match gives anchors for what it reads and makes; nodes
are looked at again only when something next to them has become known, so that all of it takes time in proportion to
the graphs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from modelexport.graph.index import Node
from modelexport.graph.operators import family, is_passing, is_product, is_view
from modelexport.lineage.anchors import Anchors, paired_inputs
from modelexport.lineage.hints import ConstantLinker
from modelexport.lineage.value_classes import NOTHING, Classes
from modelexport.record.provenance import Confidence

# More readers than these say nothing about which of them is meant.
_CROWD = 48
# Elements that a constant must have to tell its reader from others.
_TELLING = 16
# Operators that one operator was ever seen to take in behind it.
_STEPS = 4


class Matching:
    """
    matches     keys of nodes after, mapped to the node before that they do the same as
    works       the same where more is done than by that node alone, or perhaps more
    absorbed    keys of nodes after, mapped to keys of nodes before that they have taken in: they read their constants
    skipped     the same of nodes before that lay in between, and may be anybody's
    confidence  of matches, by the key of the node after
    """

    def __init__(self, before: Classes, after: Classes) -> None:
        self.before, self.after = before, after
        self.anchors = Anchors(before, after)
        self.matches: dict[str, Node] = {}
        self.works: dict[str, Node] = {}
        self.absorbed: dict[str, dict[str, None]] = {}
        self.skipped: dict[str, dict[str, None]] = {}
        self.confidence: dict[str, Confidence] = {}
        self._taken: set[str] = set()
        self._certain: set[int] = set()
        self._waiting: deque[Node] = deque()
        self._queued: set[str] = set()

    def anchor_constants(self, linker: ConstantLinker) -> None:
        for place, other in linker.pairs():
            self.anchors.known.setdefault(place, other)
            self._wake(self.after.readers_of(place))
        self.anchors.set_alike(linker.alike)

    def anchor(self, place: int, other: int, *, certain: bool = False) -> None:
        """Note that two values are the same; `certain` if that does not follow from anything else."""
        if self.anchors.add(place, other):
            if certain:
                self._certain.add(place)
            maker = self.after.makers.get(place)
            self._wake(() if maker is None else (maker,))
            self._wake(self.after.readers_of(place))

    def settle(self) -> None:
        """Follow everything that is known to its end."""
        while self._waiting:
            node = self._waiting.popleft()
            self._queued.discard(node.key)
            if node.key not in self.matches and not self._by_result(node):
                self._by_inputs(node)

    def guess(self) -> None:
        """Where nothing else helps: what a node makes that does some work, and perhaps what came next as well."""
        for node in self.after.nodes:
            if node.key not in self.matches and node.key not in self.works:
                self._by_later_result(node)
        self.settle()
        # What is made of constants alone has a part in the work, and does not end it.
        doing = [node for node in self.after.nodes if node.key in self.works and self.after.data_inputs(node)]
        for node in doing:
            if family(node.op_type) == family(self.works[node.key].op_type):
                self._anchor_inputs(node, self.works[node.key])  # more is known by now of what it reads
        self.settle()
        for node in doing:
            place = self.after.result(node)
            if place not in self.anchors:
                self.anchor(place, self._end_of_work(node, self.works[node.key]))
                self.settle()

    def _wake(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node.key not in self._queued and node.key not in self.matches:
                self._queued.add(node.key)
                self._waiting.append(node)

    # by what a node makes

    def _by_result(self, node: Node) -> bool:
        for place in self.after.outputs(node):
            origin = self.before.makers.get(self.anchors.get(place))
            if origin is None or not self._can_be(node, origin, certain=place in self._certain):
                continue
            if node.op_type == origin.op_type and not self._reads_more(node, origin):
                self._match(node, origin, Confidence.STRONG if self._has_new_weight(node) else Confidence.EXACT)
            else:
                self._work(node, origin)  # it may have taken in what came before
            return True
        return False

    def _by_later_result(self, node: Node) -> None:
        """A node that makes what came behind another one of its kind, and reads the same as that or what that was made
        from, does its work."""
        other = self.anchors.get(self.after.result(node))
        for _ in range(_STEPS):
            origin = self.before.makers.get(other)
            if origin is None:
                break
            if self.anchors.agreement(node, origin) is not None:
                if not is_view(node) and self.anchors.reads_alike(node, origin):
                    self._work(node, origin)
                break
            content = self.before.content(origin)
            if len(content) != 1 or is_product(origin):
                break
            other = content[0]

    def _can_be(self, node: Node, origin: Node, *, certain: bool) -> bool:
        """Whether two nodes that make the same can do it in the same way.

        If it is certain that they do make the same, values that they read must be the same, whatever was thought.
        """
        if self.anchors.agreement(node, origin) is not None:
            return True
        return certain and node.attributes == origin.attributes and self.anchors.may_be_same_work(node, origin)

    # by what a node reads

    def _by_inputs(self, node: Node) -> None:
        places = [place for place in self.after.inputs(node) if place != NOTHING]
        rated = sorted(self._rated(node, self._candidates(node, places)), key=lambda item: item[0], reverse=True)
        if not rated:
            self._by_weight(node, places)
            return
        (rate, origin), others = rated[0], rated[1:]
        only = not others and self._is_only_one(node, origin)
        if (others and others[0][0] == rate) or not (only or self._is_enough(places, rate[0])):
            return
        if self.anchors.is_same_work(node, origin) and not self._reads_more(node, origin):
            known = all(place in self.anchors for place in places)
            if known or origin.key not in self._taken:  # else two that may read different values would be one
                told = not others or origin.key == node.key  # of several, its name says which
                self._match(node, origin, Confidence.EXACT if known and told else Confidence.STRONG)
        else:
            self._work(node, origin)

    def _by_weight(self, node: Node, places: list[int]) -> None:
        """A node with a weight that only one node read has some part in that one's work."""
        for place in filter(self._is_telling, places):
            readers = self.anchors.readers_before(place)
            if len(readers) == 1:
                self.works.setdefault(node.key, readers[0])

    def _candidates(self, node: Node, places: list[int]) -> list[Node]:
        """Nodes of the same kind before that read one of the same values: the one of these that fewest read."""
        lists = [self.anchors.readers_before(place) for place in places if place in self.anchors]
        crowds = sorted((crowd for crowd in lists if len(crowd) <= _CROWD), key=len)
        kind = family(node.op_type)
        for crowd in (*crowds, *(_behind_views(crowd, self.before) for crowd in crowds[:1])):
            found = [other for other in crowd if family(other.op_type) == kind]
            if found:
                return found
        return []

    def _rated(self, node: Node, candidates: Iterable[Node]) -> Iterator[tuple[tuple[int, bool, bool], Node]]:
        for origin in candidates:
            agreeing = self.anchors.agreement(node, origin)
            if agreeing and not self._makes_something_else(node, origin):
                yield (agreeing, origin.attributes == node.attributes, origin.key not in self._taken), origin

    def _makes_something_else(self, node: Node, origin: Node) -> bool:
        """Whether a node is known to make what another node of the same kind made."""
        known = self.anchors.get(self.after.result(node))
        if known in (NOTHING, self.before.result(origin)) or node.op_type != origin.op_type:
            return False
        if is_view(node):
            return True  # one may be put anywhere
        maker = self.before.makers.get(known)
        return maker is None or family(maker.op_type) == family(node.op_type)

    def _is_enough(self, places: list[int], agreeing: int) -> bool:
        data = [place for place in places if place not in self.after.constants]
        if agreeing > 1 or any(self._is_telling(place) for place in places):
            return True
        return bool(data) and all(place in self.anchors for place in data)

    def _is_telling(self, place: int) -> bool:
        return place in self.anchors and self.after.size(place) >= _TELLING

    def _is_only_one(self, node: Node, origin: Node) -> bool:
        """Whether both are the only ones of their kind that read a value that is known."""
        kind = family(node.op_type)
        for place in self.after.data_inputs(node):
            other = self.anchors.get(place)
            if other != NOTHING and other in self.before.inputs(origin):
                crowds = self.after.readers_of(place), self.before.readers_of(other)
                if all(_is_alone(kind, crowd) for crowd in crowds):
                    return True
        return False

    # what follows

    def _match(self, node: Node, origin: Node, confidence: Confidence) -> None:
        self.matches[node.key] = origin
        self.confidence[node.key] = confidence
        self._taken.add(origin.key)
        for place, other in zip(self.after.outputs(node), self.before.outputs(origin), strict=False):
            self.anchor(place, other)
        self._anchor_inputs(node, origin)
        for graph_id in self.after.graph.subgraphs.get(node.key, ()):
            other_id = f"{origin.key}{graph_id.removeprefix(node.key)}"
            if other_id in self.before.graph.body_outputs:
                for place, other in self.after.ends(graph_id, self.before, other_id):
                    self.anchor(place, other)

    def _reads_more(self, node: Node, origin: Node) -> bool:
        """Whether a node reads a constant that the next node read: it has taken that one in."""
        return any(True for _ in self._taken_in(node, origin))

    def _taken_in(self, node: Node, origin: Node) -> Iterator[Node]:
        mine = {self.anchors.get(place) for place in self.after.constant_inputs(node)} - {NOTHING}
        theirs = self.before.constant_inputs(origin)
        more = {place for place in mine if not self.anchors.is_like(place, theirs)}
        for reader in self.before.readers_of(self.before.result(origin))[:_CROWD] if more else ():
            if not more.isdisjoint(self.before.inputs(reader)):
                yield reader

    def _work(self, node: Node, origin: Node) -> None:
        if node.key not in self.works:
            self.works[node.key] = origin
            self.absorbed.setdefault(node.key, {}).update((one.key, None) for one in self._taken_in(node, origin))
            self._anchor_inputs(node, origin)

    def _anchor_inputs(self, node: Node, origin: Node) -> None:
        for pair in paired_inputs(node, origin, self.anchors, self._done):
            self.anchor(pair.place, pair.other)
            for skipped in pair.skipped:
                if self._is_idle(skipped):
                    self.anchors.also.setdefault(pair.place, {})[self.before.result(skipped)] = None
                else:
                    self.skipped.setdefault(node.key, {})[skipped.key] = None

    def _done(self, node: Node) -> tuple[Node, bool] | None:
        if node.key in self.matches:
            return self.matches[node.key], True
        return (self.works[node.key], False) if node.key in self.works else None

    def _is_idle(self, origin: Node) -> bool:
        """What lay between two values is done by nobody now, or else by who reads the one."""
        return len(self.before.inputs(origin)) == 1 or is_view(origin)

    def _end_of_work(self, node: Node, origin: Node) -> int:
        """The first value from a node's result on that is read by the same operators as what another makes now."""
        if self.does_part(node, origin):
            return NOTHING
        direct = [one for one in self.after.readers_of(self.after.result(node)) if not is_passing(one)]
        wanted = [direct, list(_behind_views(direct, self.after))]
        constants = {self.anchors.get(place) for place in self.after.constant_inputs(node)} - {NOTHING}
        place, sure = self.before.result(origin), True
        for _ in range(_STEPS):
            readers = self.before.readers_of(place)[:_CROWD]
            absorbed = [reader for reader in readers if not constants.isdisjoint(self.before.inputs(reader))]
            if not absorbed and any(mine and self._fit(mine, readers) for mine in wanted):
                return place
            following = absorbed or readers
            if len(following) != 1:
                return place if sure and node.op_type == origin.op_type else NOTHING  # it cannot have taken in both
            rest = set(self.before.data_inputs(following[0])) - {place}
            if not self._may_read(node, rest):  # it cannot have joined values that it does not read
                return place if sure and any(rest <= self._known(reader) for reader in direct) else NOTHING
            sure &= bool(absorbed)
            place = self.before.result(following[0])
        return NOTHING

    def does_part(self, node: Node, origin: Node) -> bool:
        """Whether a node leaves some of another's work to those behind it: they read constants that the other read."""
        theirs = [place for place in self.before.constant_inputs(origin) if self.before.size(place) > 1]
        place = self.after.result(node)
        for _ in range(_STEPS if len(theirs) > 1 else 0):
            readers = [one for one in self.after.readers_of(place)[:_CROWD] if not is_passing(one)]
            if any(self.anchors.is_like(known, theirs) for reader in readers for known in self._weights(reader)):
                return True
            if len(readers) != 1:
                break
            place = self.after.result(readers[0])
        return False

    def still_there(self) -> frozenset[str]:
        """The keys of nodes before that some node after does the same as."""
        return frozenset(origin.key for origin in self.matches.values())

    def has_unknown_weight(self, node: Node) -> bool:
        return any(place not in self.anchors for place in self.after.weights(node))

    def _has_new_weight(self, node: Node) -> bool:
        """Whether a node reads a weight that is not known, not even by name."""
        names = self.before.graph.initializers
        return any(
            place not in self.anchors and self.after.names[place] not in names for place in self.after.weights(node)
        )

    def share_weight(self, node: Node, origin: Node) -> bool:
        """Whether a node reads a weight that another one read."""
        theirs = [place for place in self.before.constant_inputs(origin) if self.before.is_weight(place)]
        mine = (self.anchors.get(place) for place in self.after.weights(node) if place in self.anchors)
        return any(self.anchors.is_like(place, theirs) for place in mine)

    def weights_differ(self, node: Node, origin: Node) -> bool:
        """Whether a node reads weights that are known, and another one read others that hold something else."""
        mine = [self.anchors.get(place) for place in self.after.weights(node) if place in self.anchors]
        theirs = list(self.before.weights(origin))
        if not (mine and theirs) or not all(map(self._is_looked_at, (*mine, *theirs))):
            return False
        return not any(self.anchors.is_like(place, theirs) for place in mine)

    def _is_looked_at(self, place: int) -> bool:
        """Whether it is known what a constant before holds, and so which others hold the same."""
        return place in self.anchors.alike or self.before.constants.get(place) is not None

    def _weights(self, node: Node) -> Iterator[int]:
        """What is known of the constants that a node reads."""
        return (self.anchors.get(place) for place in self.after.constant_inputs(node) if place in self.anchors)

    def _known(self, node: Node) -> set[int]:
        """What is known of the data that a node reads."""
        return {self.anchors.get(place) for place in self.after.data_inputs(node)}

    def _may_read(self, node: Node, values: set[int]) -> bool:
        """Whether a node may read some values before; scales that a quantizer found are no such."""
        read = self.after.data_inputs(node)
        unknown = [place for place in read if place not in self.anchors and not self._is_scale(place)]
        return len(values - self._known(node)) <= len(unknown)

    def _is_scale(self, place: int) -> bool:
        maker = self.after.makers.get(place)
        return maker is not None and is_passing(maker)

    def _fit(self, readers: Iterable[Node], origins: Iterable[Node]) -> bool:
        """Whether each of some readers can be one of others, and what else it reads says so."""
        return all(any(self._fits(reader, origin) for origin in origins) for reader in readers)

    def _fits(self, reader: Node, origin: Node) -> bool:
        agreeing = self.anchors.agreement(reader, origin)
        if agreeing or (agreeing == 0 and len(self.after.data_inputs(reader)) == 1):
            return True
        work = self.works.get(reader.key)
        return work is not None and self._comes_next(origin, work)

    def _comes_next(self, origin: Node, work: Node) -> bool:
        """Whether a node reads what another makes, with nothing beside it on the way."""
        for _ in range(_STEPS):
            readers = self.before.readers_of(self.before.result(work))
            if origin in readers[:_CROWD]:
                return True
            if len(readers) != 1:
                return False
            work = readers[0]
        return False


def _is_alone(kind: str, crowd: list[Node]) -> bool:
    return len(crowd) <= _CROWD and sum(family(one.op_type) == kind for one in crowd) == 1


def _behind_views(readers: Iterable[Node], classes: Classes) -> Iterator[Node]:
    """What reads a value in the end, be it in another shape."""
    waiting = [(reader, 0) for reader in readers]
    while waiting:
        reader, steps = waiting.pop(0)
        if not is_view(reader):
            yield reader
        elif steps < _STEPS:
            following = classes.readers_of(classes.result(reader))[:_CROWD]
            waiting += [(one, steps + 1) for one in following]
