"""Files in which `modelexport fold` made modules into functions: how they are known, and refused where that matters."""

from __future__ import annotations

import onnx

from modelexport.errors import UserError

# The functions that modules became are in this domain, whatever domains a file has otherwise.
FOLDED_DOMAIN = "pkg.modelexport.modules"
# In the metadata of a folded model: what it takes to make it flat again.
FOLDED_KEY = "pkg.modelexport.folded"


def is_folded(model: onnx.ModelProto) -> bool:
    return any(function.domain == FOLDED_DOMAIN for function in model.functions)


def ensure_flat(model: onnx.ModelProto, subject: str) -> None:
    """Raise UserError for a folded model, where the nodes themselves are needed. `subject` is what it is called."""
    if is_folded(model):
        raise UserError(
            f"{subject} is folded: its modules are functions, and the nodes of several of them are one",
            f"Make it flat first: `modelexport flatten {subject} -o FILE`.",
        )
