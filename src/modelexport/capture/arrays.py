"""Torch tensors as numpy arrays, the way that ONNX Runtime has them."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from modelexport.graph.fingerprint import fingerprint
from modelexport.record.signals import Fingerprint

# numpy has no such types; what they hold fits into a float.
_WIDENED = frozenset({torch.bfloat16, *(getattr(torch, name) for name in dir(torch) if name.startswith("float8_"))})


def to_array(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)  # ONNX has pairs of real numbers instead
    array: np.ndarray = (tensor.float() if tensor.dtype in _WIDENED else tensor).numpy()
    return array


def as_held(tensor: torch.Tensor) -> np.ndarray:
    """The same in the type that it has, without a copy where that is possible."""
    if tensor.dtype is not torch.bfloat16:
        return to_array(tensor)
    bits: np.ndarray = tensor.detach().cpu().contiguous().view(torch.int16).numpy()
    return bits.view(ml_dtypes.bfloat16)


def print_of(tensor: torch.Tensor) -> Fingerprint:
    """The fingerprint of a tensor; of its shape alone where its content cannot be seen."""
    if tensor.is_nested:
        return Fingerprint((), "other")  # it has several shapes
    plain = tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta"
    if not plain or type(tensor) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return Fingerprint(tuple(map(int, tensor.shape)), "other")
    try:
        return fingerprint(to_array(tensor))
    except TypeError:  # several numbers in one byte: numpy has no such type
        return Fingerprint(tuple(tensor.shape), "other")
