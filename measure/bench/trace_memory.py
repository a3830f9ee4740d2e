"""Memory that recording every operator of a run takes, beyond what the run itself takes: BERT, shallow against deep.

Activations are large and parameters few, so keeping activations would show. Each figure is the peak of a process of its
own, less that of a process that runs the same model without recording. *Keeping all tensors* is measured in the same
way: a run that holds on to what each operator makes. Reading a tensor takes a passing copy of one, whatever the depth.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel

from measure.pages import Table
from measure.workers import peak_memory, run_alone
from modelexport.capture.export import ProbedRun, TracedRun, probe_operators, trace_model

DEPTHS = (2, 24)
BATCH, SEQUENCE, WIDTH = 16, 512, 64
# Names, numbers of inputs and outputs, and a few fingerprints: generous for that, nothing for a tensor of megabytes.
LIMIT = 4
MIB = 1024 * 1024
# Memory that is freed goes back at once: a peak is then what was needed, not what the allocator had at hand.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


@dataclass(frozen=True)
class Peak:
    """Bytes at the peak of a process, and the operators that it recorded."""

    bytes: int
    operators: int = 0


@dataclass(frozen=True)
class Cost:
    """Bytes beyond a run that records nothing."""

    recording: int
    keeping: int
    operators: int


def measure_trace_memory() -> Table:
    shallow, deep = (_cost(layers) for layers in DEPTHS)
    rows = [_row(f"{layers} layers", cost) for layers, cost in zip(DEPTHS, (shallow, deep), strict=True)]
    more = Cost(deep.recording - shallow.recording, deep.keeping - shallow.keeping, deep.operators - shallow.operators)
    rows.append(_row("what the further layers add", more))
    kib = more.recording / more.operators / 1024
    text = (
        f"{(__doc__ or '').strip()}\n\nWhat the further layers add is {kib:.1f} KiB for each operator; the limit is "
        f"{LIMIT} KiB. One activation of {BATCH} × {SEQUENCE} × {WIDTH} floats is "
        f"{BATCH * SEQUENCE * WIDTH * 4 // 1024:,} KiB."
    )
    columns = ("model", "operators", "recording MiB", "keeping all tensors MiB", "share")
    return Table("Memory of the trace", text, columns, tuple(rows), kib <= LIMIT)


def _row(name: str, cost: Cost) -> tuple[str, ...]:
    sizes = (f"{cost.recording / MIB:.1f}", f"{cost.keeping / MIB:,.1f}")
    return (name, str(cost.operators), *sizes, f"{cost.recording / cost.keeping:.1%}")


def _cost(layers: int) -> Cost:
    plain, recorded, kept = (_process(layers, kind) for kind in RUNS)
    return Cost(recorded.bytes - plain.bytes, kept.bytes - plain.bytes, recorded.operators)


def _process(layers: int, kind: str) -> Peak:
    environment = {**ALLOCATOR, "OMP_NUM_THREADS": "1"}
    printed = run_alone("measure.bench.trace_memory", str(layers), kind, environment=environment)
    return Peak(**json.loads(printed.splitlines()[-1]))


def _plain(run: TracedRun) -> int:
    trace_model(run.model, run.arguments)
    return 0


def _recorded(run: TracedRun) -> int:
    return len(_probed(run).trace.ops)


def _probed(run: TracedRun) -> ProbedRun:
    return probe_operators(run, set(run.arguments.tensors))


def _kept(run: TracedRun) -> int:
    with _Keeping() as keeping:
        trace_model(run.model, run.arguments)
    return len(keeping.results)


RUNS = {"plain": _plain, "recorded": _recorded, "kept": _kept}


class _Keeping(TorchDispatchMode):
    """Holds on to everything that operators make."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[Any] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.results.append(result)
        return result


def _in_own_process(layers: int, kind: str) -> Peak:
    # What recording brings in once, however large the model, is there before anything is measured.
    _probed(_run(1, batch=1, sequence=8))
    operators = RUNS[kind](_run(layers, BATCH, SEQUENCE))
    return Peak(peak_memory(), operators)


def _run(layers: int, batch: int, sequence: int) -> TracedRun:
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        vocab_size=100,
    )
    model = BertModel(config).eval()
    ids = torch.randint(5, 90, (batch, sequence))
    mask = torch.ones_like(ids)
    mask[:, -1] = 0  # one that hides nothing is left out by the model and put back by the recording
    return trace_model(model, {"input_ids": ids, "attention_mask": mask})


if __name__ == "__main__":
    print(json.dumps(asdict(_in_own_process(int(sys.argv[1]), sys.argv[2]))))
