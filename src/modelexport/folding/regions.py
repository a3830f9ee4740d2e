"""The part of a module's nodes that can be one call: no way leads out of it and back in.

If there is such a way, the region is divided: nodes are counted by how often a way from the region has left it and come
back before them, or will do so after them. Nodes of one count have no such way among them. The largest such part is
taken.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from modelexport.folding.live import Live


def convex_part(live: Live, members: Collection[int]) -> list[int]:
    """The largest part found that can be one call; all of them if they can."""
    window = live.window(members)
    inside = set(members)
    if len(window) == len(inside):
        return window
    entered = _entered(live, window, inside)
    if not any(entered[item] for item in inside):
        return [item for item in window if item in inside]
    left = _left(live, window, inside)
    parts: dict[tuple[int, int], list[int]] = {}
    for item in window:
        if item in inside:
            parts.setdefault((0, left[item]), []).append(item)
            parts.setdefault((1, entered[item]), []).append(item)
    return max(parts.values(), key=lambda part: sum(live.weight[item] for item in part))


def is_convex(live: Live, members: Collection[int]) -> bool:
    return len(convex_part(live, members)) == len(set(members))


def _entered(live: Live, window: Sequence[int], inside: Collection[int]) -> dict[int, int]:
    """How often a way from the region has come back to it at an item; items that no way leads to are left out."""
    found: dict[int, int] = {}
    for item in window:
        here = item in inside
        counts = [found[before] + (here and before not in inside) for before in live.before(item) if before in found]
        if here or counts:
            found[item] = max(counts, default=0)
    return found


def _left(live: Live, window: Sequence[int], inside: Collection[int]) -> dict[int, int]:
    """How often a way will leave the region and come back to it after an item."""
    found: dict[int, int] = {}
    for item in reversed(window):
        here = item in inside
        if here:
            found.setdefault(item, 0)
        if item in found:
            for before in live.before(item):
                count = found[item] + (before in inside and not here)
                found[before] = max(found.get(before, 0), count)
    return found
