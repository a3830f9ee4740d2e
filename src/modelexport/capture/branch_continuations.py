"""What followed on numbers of which nobody sees what a program compares them with.

    if 7.31 < float(h[0, 3]) < 7.35: h = h + 1

    float(h[0, 3])   0.4 -> b     -1.7 -> b     90.2 -> b       one follower: what else there may be was not seen
    x.max().numpy()  0.4 -> a     -1.7 -> b                     two of them: both paths were seen

The number is another one in each run, so other numbers show nothing; the functions that come next do. A number that is
only computed with has one follower for good, and may be named without need; a file that is right for all of them says
that the number itself is not frozen, and not that nothing is behind it.
"""

from __future__ import annotations

from modelexport.capture.decisions import NUMBER, Decision, RunPath, Site


class Continuations:
    """By site, and the how manieth visit of a run it was: a loop comes to one site again and again."""

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
