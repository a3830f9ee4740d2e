"""Sudden losses: modules that agree within the tolerance, and lose more than rounding explains.

    in 145 dB ──► LayerNorm ──► out 106 dB      epsilon 1e-5 in the place of 1e-12

A softmax, a difference of near numbers or a norm of data that hardly varies loses as much by rounding alone. So what is
suspicious is held against a run with other last bits (`capture/rounding.py`), which loses it there as well. That run is
made only where something is suspicious.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from modelexport.record.hierarchy import Hierarchy, ModuleCall
from modelexport.record.results.verification import CallNumbers, SuddenLoss
from modelexport.verify.divergence import ComparedCall
from modelexport.verify.numbers import Pairing

# Decibels; correct modules lose up to 10 of them, and more only where rounding is amplified.
_SUDDEN = 20.0
# The other last bits change about eight times what a kernel rounds. Of the modules of eleven correct files none was
# further from the reference than 0.85 times that.
_BEYOND = 2.0

# By number of a value: by how much rounding changes it; None where that is not known.
Noise = Callable[[int], "float | None"]


def find_sudden_losses(
    compared: Mapping[ModuleCall, ComparedCall], calls: Sequence[CallNumbers], hierarchy: Hierarchy, noise: Noise
) -> tuple[SuddenLoss, ...]:
    """Innermost modules that are given what agrees up to rounding, and return what does not."""
    suspicious = [item for item in calls if (item.lost or 0.0) > _SUDDEN]
    losing = [item for item in suspicious if _is_more_than_rounding(compared[item.call], noise)]
    around = {above for item in losing for above in hierarchy.stack(item.call)[:-1]}
    return tuple(
        SuddenLoss(item.call, item.class_name, item.inputs, item.outputs)
        for item in losing
        if item.call not in around and item.inputs is not None and item.outputs is not None
    )


def _is_more_than_rounding(call: ComparedCall, noise: Noise) -> bool:
    """Not one that is given what is wrong already: that one follows."""
    return any(_exceeds(output, noise) for output in call.outputs) and not any(
        _exceeds(given, noise) for given in call.inputs
    )


def _exceeds(pairing: Pairing, noise: Noise) -> bool:
    rounding = noise(pairing.number)
    return rounding is not None and pairing.difference.max_abs > _BEYOND * rounding
