"""Models and inputs from rows. Everything is seeded, so that a row is the same model in every process."""

from __future__ import annotations

from importlib import import_module

import torch
from torch import nn

from measure.corpus.manifest import Row
from modelexport.capture.inputs import InputRequest, make_inputs, parse_input_spec

_SEED = 0
_PERTURBATION = 0.1


def build(row: Row) -> nn.Module:
    """The row's model, ready to run. The global random state is left as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        model = _network(row) if row.hand_made else _architecture(row)
        return perturbed(model).eval()


def inputs_of(row: Row, model: nn.Module) -> object:
    """What the model is called with: a network brings its own, an architecture's are made."""
    if row.hand_made:
        example: object = model.example()  # type: ignore[operator]  # corpus.networks: every network has it
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
