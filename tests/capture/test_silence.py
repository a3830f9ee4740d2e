"""Silence: levels, filters and streams are what they were, also when several threads enter and leave in any order."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport as mx
from modelexport.capture.loading.third_party import library, quiet_transformers
from modelexport.capture.silence import quiet, silence_loggers, silence_tools

_LOGGERS = ("torch.onnx", "onnxscript", "torch", "transformers", "huggingface_hub")


def _global_state() -> tuple[object, ...]:
    levels = {name: logging.getLogger(name).level for name in _LOGGERS}
    bars = library("transformers.utils.logging").is_progress_bar_enabled()
    return levels, [*warnings.filters], sys.stderr, sys.stdout, logging.root.manager.disable, bars


@pytest.fixture
def other_level() -> Iterator[None]:
    """A level that somebody has set: put back to it, not to what a library starts with."""
    library("transformers.utils.logging"), library("huggingface_hub.utils")  # they set levels when they are imported
    logger = logging.getLogger("transformers")
    before = logger.level
    logger.setLevel(logging.INFO)
    yield
    logger.setLevel(before)


@pytest.mark.usefixtures("other_level")
@pytest.mark.parametrize("silence", [quiet, quiet_transformers, silence_tools, lambda: silence_loggers(*_LOGGERS)])
@pytest.mark.parametrize("first_out", [0, 1])
def test_who_leaves_first_does_not_matter(silence: object, first_out: int) -> None:
    """Interleaved as two threads do it: each of them enters before the other one leaves."""
    assert callable(silence)
    before = _global_state()
    stacks = ExitStack(), ExitStack()
    for stack in stacks:
        stack.enter_context(silence())
    stacks[first_out].close()
    assert _global_state() != before  # the other one is still at work
    stacks[1 - first_out].close()
    assert _global_state() == before


def test_a_failure_inside_puts_everything_back() -> None:
    before = _global_state()
    with pytest.raises(RuntimeError), quiet(), quiet():
        raise RuntimeError
    assert _global_state() == before


def test_exports_from_several_threads_leave_loggers_as_they_were(tmp_path: Path) -> None:
    def export(number: int) -> None:
        net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
        inputs = {"input": torch.zeros(1, 3, 8, 8)}
        mx.export(net, tmp_path / f"{number}.onnx", inputs=inputs, exporter="torchscript", no_check=True)

    export(0)
    before = _global_state()
    threads = [threading.Thread(target=export, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert _global_state() == before
    assert len([*tmp_path.glob("*.onnx")]) == 4
