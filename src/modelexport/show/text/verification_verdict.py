"""The last line of a verification: that everything agrees, what is wrong, or what nobody could look at.

everything agrees
everything that was compared agrees; fc was not compared; 2 nodes did not run
what was compared agrees, but output y could not be compared
not as ./net: weights differ, numbers differ
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from modelexport.errors import some_of
from modelexport.record.results import verification as results
from modelexport.show.text.console import counted, plain
from modelexport.show.text.verification_rows import by_module

TOO_SMALL, NOTHING_FINITE = "too small to tell", "NaN or infinite everywhere"


def verdict_line(verification: results.Verification) -> Text:
    left_out = list(_left_out(verification)) if verification.ok else []
    if left_out:
        return plain(f"what was compared agrees, but {'; '.join(left_out)}", "yellow")
    if verification.ok:
        unseen = "; ".join(_not_seen(verification))
        return plain(f"everything that was compared agrees; {unseen}" if unseen else "everything agrees", "green")
    return plain(f"not as {verification.reference}: {', '.join(_wrong(verification))}", "bold red")


def _not_seen(verification: results.Verification) -> Iterator[str]:
    """What these inputs do not show, or the graph does not hold: the lines above say so, and the last one as well."""
    modules = by_module(verification.calls)
    if names := [module.path or "(model)" for module in modules if not module.compared]:
        yield f"{some_of(names)} {'was' if len(names) == 1 else 'were'} not compared"
    if names := [module.path or "(model)" for module in modules if 0 < module.compared < len(module.calls)]:
        yield f"{some_of(names)} not in every call"
    if verification.proof is not None and (count := verification.proof.reasons.get(results.NOT_RUN, 0)):
        yield f"{counted(count, 'node')} did not run"


def _named(outputs: Sequence[str]) -> str:
    """`output y`, and not `output output` where that is its name."""
    return "the output" if list(outputs) == ["output"] else f"output {', '.join(outputs)}"


def _left_out(verification: results.Verification) -> Iterator[str]:
    """What nobody could look at: that it agrees is not known."""
    if small := [name for name, difference in verification.outputs.items() if difference.too_small]:
        yield f"{_named(small)} is {TOO_SMALL}: no larger than rounding errors"
    if empty := [name for name, difference in verification.outputs.items() if difference.nothing_finite]:
        yield f"{_named(empty)} is {NOTHING_FINITE} in both: no numbers could be compared on these inputs"
    if verification.skipped:
        yield f"{_named(verification.skipped)} could not be compared"
    if count := len(verification.sudden_losses):
        yield f"{counted(count, 'module')} {'loses' if count == 1 else 'lose'} more than rounding explains"
    check, proof = verification.parameters, verification.proof
    if proof is not None and proof.compute and not proof.compute_shown:
        weights = "" if check is None or check.compared else ", and no weight has a copy in the file"
        yield f"none of the attributions could be proved by values{weights}"


def _wrong(verification: results.Verification) -> Iterator[str]:
    """All that is wrong, because one repair may not be enough."""
    if not verification.outputs:
        yield "no output could be compared"
    if verification.missing:
        yield f"{_named(verification.missing)} is missing"
    if verification.parameters is not None and verification.parameters.differing:
        yield "weights differ"
    if not verification.numbers_agree:
        yield _name_difference(verification.outputs)
    if verification.frozen:
        yield "right only for inputs like the sample"
    if verification.proof is not None and verification.proof.contradicted:
        yield f"{counted(len(verification.proof.contradicted), 'attribution')} contradicted"


def _name_difference(outputs: Mapping[str, results.Difference]) -> str:
    if not outputs or not all(difference.agrees for difference in outputs.values()):
        return "numbers differ"
    small = [name for name, difference in outputs.items() if difference.too_small]
    told = f"{_named(small)} is {TOO_SMALL}" if small else "its outputs agree"
    return f"numbers differ inside of the model, and {told}"
