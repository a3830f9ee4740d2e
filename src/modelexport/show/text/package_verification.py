"""Verification of a package for people: each file, the steps of the chain, the grid, the tokens, and who is to blame.

qwen3 against ./qwen3
decoder    agrees: 5 outputs, 32 module calls; 198 of 206 nodes proved or enclosed, 0 contradicted

step  component  batch  past  query  max |Δ|  SQNR dB  status
   0  decoder        2     0      8  3.1e-07      132  ok

tokens: 16 new ones in 2 rows, equal to generate's
first divergence: step 1, decoder, model.layers.0.self_attn (LlamaAttention): past_key_values.0.key …
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.errors import some_of
from modelexport.record.results.package_verification import PackageVerification, StepCheck, TokenCheck
from modelexport.record.results.verification import Verification
from modelexport.show.text.console import (
    counted,
    decibels_text,
    difference_text,
    modules_text,
    note_lines,
    plain,
    seconds_line,
    table,
)
from modelexport.show.text.verification import verification_tables
from modelexport.show.text.verification_rows import Shown

_FEW = 6  # steps that are alike are not shown one by one


def package_verification_tables(verification: PackageVerification, shown: Shown) -> Iterator[RenderableType]:
    yield plain(f"{verification.folder} against {verification.reference}", "bold")
    for name, component in verification.components.items():
        if component.ok and not shown.verbose:
            yield plain(f"{name}: {_summary(component)}")
        else:
            yield from (Text(), plain(f"── {name} ──", "bold"), *verification_tables(component, shown), Text())
    if verification.steps:
        steps = verification.steps if shown.everything else _shorten(verification.steps)
        yield from (Text(), _checks("Steps", steps))
        if len(steps) < len(verification.steps):
            yield plain(f"not shown: {counted(len(verification.steps) - len(steps), 'step')} that agree (--all)", "dim")
    if verification.grid:
        yield from (Text(), _checks("Other sizes", verification.grid))
    yield Text()
    if verification.tokens is not None:
        yield _tokens_line(verification.tokens)
    yield from _divergence(verification.divergence)
    if verification.missing:
        yield plain(f"only in one of the packages: {some_of(verification.missing)}", "red")
    for text in verification.connections:
        yield plain(f"put together in another way: {text}", "red")
    yield _verdict(verification)
    yield from note_lines(verification.notes)
    if shown.verbose and verification.seconds:
        yield seconds_line(verification.seconds)


def _summary(verification: Verification) -> str:
    calls = sum(call.outputs is not None for call in verification.calls)
    compared = f"{counted(len(verification.outputs), 'output')} and {counted(calls, 'module call')} agree"
    if losses := verification.sudden_losses:
        names = some_of([modules_text([loss.call]) for loss in losses])
        compared = f"{compared}, {names} with a loss that is more than rounding explains"
    proof = verification.proof
    if proof is None:
        return compared
    return f"{compared}; {proof.compute_shown} of {proof.compute} nodes that compute floats are proved or enclosed"


def _shorten(steps: Sequence[StepCheck]) -> Sequence[StepCheck]:
    """The first ones and the last: that is where something can be seen."""
    return steps if len(steps) <= _FEW else (*steps[: _FEW // 2], *steps[-(_FEW // 2) :])


def _checks(title: str, checks: Sequence[StepCheck]) -> Table:
    numbers = ("batch", "past", "query", "calls", "max |Δ|", "SQNR dB")
    is_chain = title == "Steps"
    first = ("step",) if is_chain else ()
    shown = table(title, *first, "component", *numbers[:3], "padding", *numbers[3:], "status", right=(*first, *numbers))
    for check in checks:
        worst = check.worst
        status = plain("ok", "green") if check.ok else plain("diverges", "red")
        shown.add_row(
            *([str(check.step)] if is_chain else []),
            plain(check.component),
            *map(str, (check.batch, check.past, check.query)),
            check.padding,
            str(check.calls or ""),
            "" if worst is None else difference_text(worst.max_abs),
            "" if worst is None else decibels_text(worst.sqnr),
            status,
        )
    return shown


def _tokens_line(tokens: TokenCheck) -> Text:
    new, rows = len(tokens.expected[0]) if tokens.expected else 0, len(tokens.expected)
    said = f"tokens: {counted(new, 'new one')} in {counted(rows, 'row')}"
    differing = tokens.first_differing
    if differing is None:
        return plain(f"{said}, equal to those of generate", "green")
    made = min((len(row) for row in tokens.chosen), default=0)
    if not made:
        return plain(f"{said} by generate, none by the files: the chain diverged in its first step", "yellow")
    if made <= differing:
        return plain(f"{said}: {made} were made before the chain diverged, equal to those of generate", "yellow")
    pairs = zip(tokens.expected, tokens.chosen, strict=True)
    row, wanted, got = next((i, a, b) for i, (a, b) in enumerate(pairs) if a[differing] != b[differing])
    tail = f"row {row} has {got[differing]}, generate {wanted[differing]}"
    return plain(f"{said}: the first that differs is of step {differing}: {tail}", "red")


def _divergence(check: StepCheck | None) -> Iterator[RenderableType]:
    wrong = None if check is None else check.divergence
    if check is None or wrong is None:
        return
    module = "a module that is not known" if wrong.module is None else wrong.module or "(model)"
    named = f"{module} ({wrong.class_name})" if wrong.class_name else module
    sizes = f"batch {check.batch}, past {check.past}, query {check.query}"
    yield plain(f"first divergence: step {check.step} ({sizes}), {wrong.component}, {named}", "bold red")
    said = f"{wrong.value}: {wrong.reason}" if wrong.value else wrong.reason
    if wrong.difference is not None:
        size = "another shape" if wrong.difference.max_abs != wrong.difference.max_abs else ""
        said += f" ({size or 'max |Δ| ' + difference_text(wrong.difference.max_abs)})"
    yield plain(f"  {said}")


def _verdict(verification: PackageVerification) -> Text:
    if verification.ok:
        return plain(f"{verification.folder} computes what {verification.reference} computes", "green")
    return plain(f"not as {verification.reference}", "red")
