"""File samples: the sample of an entry point in other sizes, as a file may take only some of them.

sample           all rows, padded on the left
without padding  the row with the most tokens
one token        the first of that row, for a file that reads no prompt
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.captures import BATCH, SEQUENCE, TOTAL
from modelexport.capture.generation.decoder_step import MASK
from modelexport.errors import InputError


def axis_sizes(entry: EntryPoint) -> dict[str, int]:
    return {what: entry.inputs[name].shape[axis] for name, axes in entry.axes.items() for axis, what in axes.items()}


def lengthen_prompt(inputs: Mapping[str, torch.Tensor], count: int) -> dict[str, torch.Tensor]:
    """Tokens and their masks with so many more columns, or fewer."""
    tokens = next(tensor for name, tensor in inputs.items() if name == "input_ids")
    length = tokens.shape[1] + count
    if length < 1:
        raise InputError(
            f"the file takes a past of {length} tokens before the first one", "Give all inputs: --inputs FILE.npz."
        )
    # Fewer columns are the last ones: padding is on the left.
    order = torch.arange(length) % tokens.shape[1] + max(-count, 0)
    return {
        name: tensor[:, order] if tensor.shape == tokens.shape and not tensor.is_floating_point() else tensor
        for name, tensor in inputs.items()
    }


def cut_samples(entry: EntryPoint, fixed: Mapping[str, int]) -> Iterator[EntryPoint]:
    """The entry point on its sample, on a row of it without padding, and on one token, in the sizes of the file."""
    row, rows = find_unpadded_row(entry), range(axis_sizes(entry).get(BATCH, 1))
    for repeated, tokens in (([*rows], None), ([row], None), ([row], 1)):
        batch = [repeated[index % len(repeated)] for index in range(fixed.get(BATCH, len(repeated)))]
        yield _cut(entry, batch, fixed.get(SEQUENCE, tokens))


def find_unpadded_row(entry: EntryPoint) -> int:
    mask = entry.inputs.get(MASK)
    return 0 if mask is None else int(mask.reshape(len(mask), -1).sum(dim=1).argmax())


def _cut(entry: EntryPoint, rows: Sequence[int], tokens: int | None) -> EntryPoint:
    """Of a sample, some rows and the first tokens."""
    dropped = 0 if tokens is None else axis_sizes(entry).get(SEQUENCE, tokens) - tokens
    inputs = {
        name: _cut_tensor(tensor, entry.axes.get(name, {}), rows, dropped) for name, tensor in entry.inputs.items()
    }
    return replace(entry, inputs=inputs)


def _cut_tensor(tensor: torch.Tensor, axes: Mapping[int, str], rows: Sequence[int], dropped: int) -> torch.Tensor:
    for axis, what in axes.items():
        if what == BATCH:
            tensor = tensor.index_select(axis, torch.tensor(rows))
        elif what in (SEQUENCE, TOTAL):
            tensor = tensor.narrow(axis, 0, tensor.shape[axis] - dropped)
    return tensor.contiguous()
