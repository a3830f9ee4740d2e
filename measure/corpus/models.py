"""Models of the corpus: built from rows, with inputs and as exported files.

Everything is seeded, so that a row is the same model in every process.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
from torch import nn

import modelexport as mx
from measure.corpus.rows import Row, read_rows
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.specs import InputRequest, parse_input_spec

_SEED = 0
_PERTURBATION = 0.1


@cache
def rows_by_name() -> dict[str, Row]:
    return {row.name: row for row in read_rows()}


def export_row(name: str, exporter: str, path: Path) -> mx.ExportResult:
    """The row's model as a tagged file, without the check of outputs: who measures files looks at them anyway."""
    row = rows_by_name()[name]
    model = build(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mx.export(model, path, inputs=inputs_of(row, model), exporter=exporter, no_check=True)


def build(row: Row) -> nn.Module:
    """The row's model, ready to run. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        if not row.hand_made:
            return perturbed(_architecture(row)).eval()
        network = perturbed(_network(row)).eval()
        network.make_equal()  # type: ignore[operator]  # measure.corpus.networks: every network has it
        return network


def inputs_of(row: Row, model: nn.Module) -> object:
    """What the model is called with: a network brings its own, an architecture's are made."""
    if row.hand_made:
        example: object = model.example()  # type: ignore[operator]  # measure.corpus.networks: every network has it
        return example
    request = InputRequest(shapes=tuple(map(parse_input_spec, row.inputs)), seed=_SEED)
    return dict(make_inputs(model, None, request).values)


def perturbed(model: nn.Module) -> nn.Module:
    """Other weights everywhere: equal initial weights (norms, biases) hide which module a value came from."""
    generator = torch.Generator().manual_seed(_SEED)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point():
                tensor.add_((torch.rand(tensor.shape, generator=generator) - 0.5) * _PERTURBATION)
    return model


def _architecture(row: Row) -> nn.Module:
    import transformers

    config = getattr(transformers, row.config_class)(**row.config)
    model: nn.Module = getattr(transformers, row.model_class)._from_config(config)
    return model


def _network(row: Row) -> nn.Module:
    module, _, name = row.model_class.rpartition(".")
    network: nn.Module = getattr(import_module(f"measure.corpus.networks.{module}"), name)()
    return network
