"""Profile of a package that generates: the prefill, and decode steps with a past of one length or several.

    prefill   decoder   512 tokens, nothing in the past         one run of the file (`Profile`)
    decode    decoder   1 token, 544 in the past                one run of the file

Tokens per second are those of the chain: the files one after the other, the cache handed on, no profiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.results.profile import Profile


@dataclass(frozen=True)
class PhaseProfile:
    """One run of one file.

    phase      `prefill` or `decode`
    attention  the share of the time inside of modules that attend; None if no role says which do
    """

    phase: str
    component: str
    past: int
    query: int
    profile: Profile
    attention: float | None


@dataclass(frozen=True)
class ChainTime:
    """What a phase took as a whole, in seconds, files that feed the decoder included."""

    tokens: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else float("inf")


@dataclass(frozen=True)
class PackageProfile:
    """
    prompt    tokens of the prefill
    phases    the prefill of each component that it runs; a decode step in the middle of the new tokens; a decode step
              for each length of the past that was asked for
    """

    folder: str
    batch: int
    prompt: int
    new_tokens: int
    prefill: ChainTime
    decode: ChainTime
    phases: tuple[PhaseProfile, ...]
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def ok(self) -> bool:
        """Whether in every run the parts add up to the whole."""
        return all(phase.profile.check.holds for phase in self.phases)
