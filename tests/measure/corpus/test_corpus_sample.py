"""A sample of the corpus, exported and verified here: `make corpus` runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from measure.corpus.models import build, inputs_of
from measure.corpus.rows import EXPORTERS, Outcome, Row, describe_change, read_rows
from measure.corpus.verify_row import verify_row

pytestmark = pytest.mark.slow

ROWS = {row.name: row for row in read_rows()}
# Families that differ most in how they are written, and the odd cases that went wrong before.
SAMPLE = (
    "albert",
    "gpt2",
    "resnet",
    "wav2vec2",
    "patchtsmixer",
    "repeated-block",
    "direct-forward",
    "checkpointed-reentrant",
    "branching",
    "folded-norms",
    "divided",
    "long-short-term",
)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", SAMPLE)
def test_a_row_holds(name: str, exporter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    row = ROWS[name]
    result = verify_row(row, exporter)
    assert not describe_change(row.expected[exporter], result)
    if result.outcome is Outcome.OK:
        assert result.proof is not None
        assert result.proof.compute > 0
        assert result.proof.contradicted == result.proof.unattributed == 0


@pytest.mark.parametrize("name", ["bert", "resnet", "tied-weights"])
def test_a_row_is_the_same_model_every_time(name: str) -> None:
    torch.manual_seed(1)
    first = build(ROWS[name]).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = build(ROWS[name])
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(value, second.state_dict()[key]) for key, value in first.items())
    assert not second.training


def test_no_two_weights_of_a_row_are_equal() -> None:
    """At first, all norms are alike, and all biases."""
    weights = [value for value in build(ROWS["bert"]).state_dict().values() if value.is_floating_point()]
    assert len({tuple(value.flatten().tolist()) for value in weights}) == len(weights)


@pytest.mark.parametrize("row", [row for row in ROWS.values() if row.hand_made], ids=lambda row: row.name)
@pytest.mark.filterwarnings("ignore::UserWarning")  # what torch says about checkpoints and compiled modules
def test_a_network_runs_on_the_inputs_that_it_brings(row: Row) -> None:
    """Twice on the same: what it brings must not depend on what was drawn before."""
    network = build(row)
    first, second = (inputs_of(row, network) for _ in range(2))
    assert str(first) == str(second)
    with torch.no_grad():
        result = network(**first) if isinstance(first, dict) else network(*first)  # type: ignore[misc]
    assert result is not None
