"""Named parts: several modules of a callable as one whole model, and each of them as an entry point of the whole.

    def build():
        return {"encoder": (encoder, {"x": x}), "decoder": (decoder, {"h": h})}

    join_parts(…)         one root whose children are `encoder` and `decoder`
    find_part_entries(…)  an EntryPoint for each: encoder.fc and decoder.fc are paths of the whole, in every file

A module that both parts use has one path, that of the part which is named first, and so one tag in both files.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from modelexport.capture.arguments import bind_arguments, output_tensors
from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.inputs.specs import dynamic_axes
from modelexport.capture.loading.dtypes import convert_inputs
from modelexport.capture.loading.third_party import LoadedModel
from modelexport.errors import ModelUnloadable

Parts = Mapping[str, tuple[torch.nn.Module, Mapping[str, object]]]

_LONGEST_NAME = 100  # as in modelexport.json


class JoinedParts(torch.nn.Module):
    """The whole that parts are children of. It is never called as such: each part is entered by itself."""


def join_parts(parts: Parts) -> JoinedParts:
    """One model whose children are the parts; ModelUnloadable for a name that a child or a file cannot have."""
    whole = JoinedParts()
    for name, (module, _) in parts.items():
        # What a module has already (`forward`) would be hidden by a child of that name.
        # Nor can everything that Python takes for a name be that of a file on every system.
        is_name = name.isascii() and name.replace("-", "_").isidentifier() and len(name) <= _LONGEST_NAME
        if not is_name or hasattr(whole, name):
            raise ModelUnloadable(
                f"a part cannot be called {name!r}",
                'Choose names such as "encoder" and "decoder": letters, digits, _ and -.',
            )
        whole.add_module(name, module)
    return whole


def find_part_entries(loaded: LoadedModel) -> tuple[EntryPoint, ...]:
    """One entry point for each part, by the inputs that it came with; none for a model without parts."""
    return tuple(
        _enter_part(name, loaded.module.get_submodule(name), sample, loaded.dtype)
        for name, sample in loaded.parts.items()
    )


def _enter_part(
    name: str, part: torch.nn.Module, sample: Mapping[str, object], dtype: torch.dtype | None
) -> EntryPoint:
    arguments = convert_inputs(bind_arguments(part, sample), dtype)

    def forward(**tensors: torch.Tensor) -> Mapping[str, torch.Tensor]:
        # What is no tensor (flags, None) stays what the sample has.
        called = arguments.with_tensors(tensors)
        outputs: Any = part(*called.args, **called.kwargs)
        return output_tensors(outputs)

    tensors = arguments.tensors
    return EntryPoint(name, forward, tensors, dynamic_axes(tensors))
