"""Verification of a package: its files one by one, as a chain that generates, and on a grid of sizes.

    components   each file against the entry point of the model that it is (`Verification`)
    steps        the files as a chain: prefill, then decode steps, each with the cache that the step before handed on
    grid         single steps of other sizes: batch, tokens in the past, tokens in the query, padding
    tokens       what the chain generates beside what `generate` does

The first divergence is the earliest of them, with step, component, module and tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.results.verification import Difference, Verification


@dataclass(frozen=True)
class StepDivergence:
    """Where a step goes wrong first.

    module   path of the module that is to blame; None if it is not known, `""` for the model itself
    value    the tensor that differs: an input that was handed on, a value inside of the file, or an output
    reason   what is wrong with it, in words
    """

    component: str
    module: str | None
    class_name: str
    value: str
    reason: str
    difference: Difference | None = None


@dataclass(frozen=True)
class StepCheck:
    """One run of one component beside the model.

    step     number of the step: 0 is the prefill. A prompt that goes in token by token is several checks of step 0
    past     tokens that it has seen before
    query    tokens that it is given
    given    inputs that links and cache pairs handed on, compared with the model's
    outputs  logits, and every tensor of the cache
    calls    module calls that were compared
    """

    step: int
    component: str
    batch: int
    past: int
    query: int
    given: Mapping[str, Difference]
    outputs: Mapping[str, Difference]
    calls: int = 0
    padding: str = ""
    divergence: StepDivergence | None = None

    @property
    def ok(self) -> bool:
        return self.divergence is None

    @property
    def worst(self) -> Difference | None:
        return Difference.worst(self.outputs.values())


@dataclass(frozen=True)
class TokenCheck:
    """New tokens, row by row.

    expected  of `generate`
    chosen    by the same rules from the logits of the files, as far as the chain went
    """

    expected: tuple[tuple[int, ...], ...]
    chosen: tuple[tuple[int, ...], ...]

    @property
    def first_differing(self) -> int | None:
        """The step of the first token that differs or was never made; None if all are equal."""
        for step, wanted in enumerate(zip(*self.expected, strict=True)):
            if any(len(row) <= step or row[step] != token for row, token in zip(self.chosen, wanted, strict=True)):
                return step
        return None

    @property
    def ok(self) -> bool:
        return self.first_differing is None


@dataclass(frozen=True)
class PackageVerification:
    """
    components  by name
    missing     components that only one of two packages has
    connections links and cache pairs that only one of two packages has, in words
    steps       in order; the last one is the first that diverges, if one does: those behind it would only repeat it
    tokens      None for a model that does not generate
    """

    folder: str
    reference: str
    components: Mapping[str, Verification]
    steps: tuple[StepCheck, ...] = ()
    grid: tuple[StepCheck, ...] = ()
    tokens: TokenCheck | None = None
    missing: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def checks(self) -> tuple[StepCheck, ...]:
        """Of the chain, then of the grid."""
        return (*self.steps, *self.grid)

    @property
    def divergence(self) -> StepCheck | None:
        """The first check that fails."""
        return next((check for check in self.checks if not check.ok), None)

    @property
    def ok(self) -> bool:
        files = all(component.ok for component in self.components.values())
        joined = not self.missing and not self.connections
        return files and joined and self.divergence is None and (self.tokens is None or self.tokens.ok)
