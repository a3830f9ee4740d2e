"""Profile of a package for people: tokens per second, each phase, and the modules of each.

qwen3 · prompt of 512 tokens, 64 new ones, batch 1
prefill 3,412 tokens/s (150 ms) · decode 85.3 tokens/s (11.7 ms each)

phase    component   past  query    a run  attention
prefill  decoder        0    512   148 ms      41.2%
decode   decoder      544      1  11.1 ms      22.0%
"""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from modelexport.record.results.package_profile import PackageProfile, PhaseProfile
from modelexport.show.text.console import counted, plain, seconds_line, table
from modelexport.show.text.cost_and_profile import profile_tables, time_text


def package_profile_tables(
    profile: PackageProfile, *, depth: int | None = None, everything: bool = False, verbose: bool = False
) -> Iterator[RenderableType]:
    asked = f"prompt of {counted(profile.prompt, 'token')}, {profile.new_tokens} new, batch {profile.batch}"
    yield plain(f"{profile.folder} · {asked}", "bold")
    prefill, decode = profile.prefill, profile.decode
    each = decode.seconds / max(profile.new_tokens, 1)
    rates = [f"{rate:,.1f} tokens/s" for rate in (prefill.tokens_per_second, decode.tokens_per_second)]
    took = time_text(prefill.seconds * 1e6), time_text(each * 1e6)
    yield plain(f"prefill {rates[0]} ({took[0]}) · decode {rates[1]} ({took[1]} a step)")
    numbers = ("past", "query", "a run", "attention")
    shown = table("", "phase", "component", *numbers, right=numbers)
    for phase in profile.phases:
        share = "?" if phase.attention is None else f"{phase.attention:.1%}"
        sizes = map(str, (phase.past, phase.query))
        shown.add_row(phase.phase, plain(phase.component), *sizes, time_text(phase.profile.wall), share)
    yield from (Text(), shown)
    for phase in _detailed(profile, everything):
        title = f"── {phase.phase}: {phase.component}, past {phase.past}, query {phase.query} ──"
        yield from (Text(), plain(title, "bold"))
        yield from profile_tables(phase.profile, depth=depth, everything=everything)
    if verbose and profile.seconds:
        yield seconds_line(profile.seconds)


def _detailed(profile: PackageProfile, everything: bool) -> Iterator[PhaseProfile]:
    """The phases whose modules are shown: each component once in each phase, or all."""
    seen: set[tuple[str, str]] = set()
    for phase in profile.phases:
        if everything or (phase.phase, phase.component) not in seen:
            seen.add((phase.phase, phase.component))
            yield phase
