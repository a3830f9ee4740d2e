"""What may hide a branch: sizes, and numbers that nobody sees compared.

Sizes for a branch search: those of an open axis at which a program may take another path.

x.shape[1] > 20        compared in sight: where the answer changes can be reckoned          find_borders
len(x), for row in x   what the program does with the size cannot be seen: some of all scales  propose_sizes
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modelexport.capture.decisions import NUMBER, Decision, RunPath, Site

_LONGEST = 4096
_MOST_SIZES = 20
# Of sizes that are not compared in sight: small ones, with no common divisor, and multiples of what the axis has.
_SMALL, _TIMES = (1, 2, 3, 5, 7, 8, 16), (4, 16, 64)


def may_have_borders(path: RunPath) -> bool:
    return bool(path.lengths) or any(decision.compared for decision in path.decisions)


def depends_on_size(path: RunPath, longer: RunPath) -> bool:
    """Whether a run at another size shows any reason to try more of them."""
    return longer.lengths != path.lengths or any(decision.compared for decision in path.decisions)


def propose_sizes(path: RunPath, now: int, longer: Mapping[int, RunPath]) -> list[int]:
    """Sizes to try for an axis that has size `now` in `path`, and two others in `longer`."""
    sizes = dict.fromkeys(find_borders(path, now, longer))
    # A length of another axis stays the same, and has nothing to do with this one.
    if any(other.lengths != path.lengths for other in longer.values()):
        sizes |= dict.fromkeys((*_SMALL, *(factor * now for factor in _TIMES)))
    return [size for size in sizes if 1 <= size <= _LONGEST and size not in (now, *longer)][:_MOST_SIZES]


def find_borders(path: RunPath, now: int, longer: Mapping[int, RunPath]) -> Iterator[int]:
    """Sizes of an axis at which comparisons have another answer, if what is compared grows with the axis as a line.

        8 > 20 at size 8, 9 > 20 at size 9        one more for each, so 21
        2 > 4 at size 8, 4 > 4 at size 17         2 more for 9, so 21 or 22

    longer  the paths at two other sizes
    """
    for size, other in sorted(longer.items(), reverse=True):
        compared: dict[Site, list[tuple[float, float]]] = {}
        for decision in other.decisions:
            if decision.compared is not None:
                compared.setdefault(decision.site, []).append(decision.compared)
        for decision in path.decisions:
            again = compared.get(decision.site)
            if decision.compared is None or not again:
                continue
            left, right = again.pop(0)
            apart = decision.compared[0] - decision.compared[1]
            slope = (left - right - apart) / (size - now)
            if slope:
                exact = now - apart / slope
                yield from dict.fromkeys(round(exact + shift) for shift in (0.0, 1 / slope, -1 / slope, 0.5, -0.5))


class Continuations:
    """What followed on numbers of which nobody sees what a program compares them with.

        if 7.31 < float(h[0, 3]) < 7.35: h = h + 1

        float(h[0, 3])   0.4 -> b     -1.7 -> b     90.2 -> b       one follower: what else there may be was not seen
        x.max().numpy()  0.4 -> a     -1.7 -> b                     two of them: both paths were seen

    The number is another one in each run, so other numbers show nothing; the functions that come next do. A number
    that is only computed with has one follower for good, and may be named without need; a file that is right for all
    of them says that the number itself is not frozen, and not that nothing is behind it.

    By site, and the visit of a run: a loop comes to one site again and again.
    """

    def __init__(self) -> None:
        self._numbers: dict[Site, Decision] = {}
        self._followers: dict[tuple[Site, int], set[str]] = {}
        self._values: dict[tuple[Site, int], set[object]] = {}
        self._depending: set[Site] = set()

    def note(self, path: RunPath) -> None:
        """A run at the sample's own sizes: others have other functions for many a reason."""
        visits: dict[Site, int] = {}
        for decision, follower in zip(path.decisions, path.followers, strict=True):
            if decision.kind != NUMBER or not decision.hidden:
                continue
            visit = visits[decision.site] = visits.get(decision.site, -1) + 1
            self._numbers.setdefault(decision.site, decision)
            self._followers.setdefault((decision.site, visit), set()).add(follower)
            self._values.setdefault((decision.site, visit), set()).add(decision.value)
            self.note_dependence(decision)

    def note_dependence(self, decision: Decision) -> None:
        """Of a run with margins, which alone knows that the inputs went into a number that is always the same."""
        if decision.depends:
            self._depending.add(decision.site)

    def unchanged(self) -> list[Decision]:
        """Numbers that the inputs change, with one follower in all runs."""
        decided = {site for (site, _), followers in self._followers.items() if len(followers) > 1}
        moved = {site for (site, _), values in self._values.items() if len(values) > 1}
        return [
            decision
            for site, decision in self._numbers.items()
            if site not in decided and (site in moved or site in self._depending)
        ]
