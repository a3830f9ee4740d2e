"""What torch refuses: which attempts are made again, and what of them is listed."""

from __future__ import annotations

from measure.corpus.rows import Outcome, Proof, Result
from measure.generation.refused import compose_refused, find_refused

_KNOWN = (
    Result("vilt", "dynamo", Outcome.REFUSED, "u0 > 1"),
    Result("vilt", "torchscript", Outcome.REFUSED, "num_samples"),
    Result("gemma3", "dynamo", Outcome.REFUSED, "aten._is_all_true"),
    Result("gemma3", "torchscript", Outcome.OK),
)
_OK = Result("gemma3", "transformers", Outcome.OK, proof=Proof(nodes=363, compute=200, compute_shown=199))
_REFUSED = Result("vilt", "transformers", Outcome.REFUSED, "GuardOnDataDependentSymNode")


def test_attempts_are_counted_by_model() -> None:
    assert find_refused(_KNOWN) == {"vilt": ("dynamo", "torchscript"), "gemma3": ("dynamo",)}


def test_what_exports_is_counted_and_what_does_not_has_its_reason() -> None:
    table, targets = compose_refused(find_refused(_KNOWN), [_REFUSED, _OK])
    assert [target.measured for target in targets] == ["1 of 2 models, 1 of 3 attempts; 1 with right numbers", "1 of 1"]
    assert table.holds
    assert ("gemma3", "dynamo", "ok", "363", "0", "99.5", "") in table.rows
    assert table.rows[0][-1] == "`GuardOnDataDependentSymNode`"


def test_what_cannot_be_verified_is_exported_and_not_sound() -> None:
    random = Result("gemma3", "transformers", Outcome.RANDOM, "other numbers each time")
    _, targets = compose_refused(find_refused(_KNOWN), [_REFUSED, random])
    assert [target.measured for target in targets] == [
        "1 of 2 models, 1 of 3 attempts; 0 with right numbers",
        "0 of 0",
    ]


def test_a_wrong_module_is_a_fault() -> None:
    defect = Result("gemma3", "transformers", Outcome.DEFECT, "Add is credited to nobody", Proof(nodes=2))
    table, targets = compose_refused(find_refused(_KNOWN), [_REFUSED, defect])
    assert not table.holds
    assert [target.holds for target in targets] == [True, False]
    assert table.notes == ("gemma3: Add is credited to nobody",)
