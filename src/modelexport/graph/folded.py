"""Files in which `modelexport fold` made modules into functions: how they are known, and refused where that matters."""

from __future__ import annotations

import onnx

from modelexport.errors import FileUnreadable, UserError
from modelexport.graph.index import walk_nodes
from modelexport.record.wording import some_of

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


def ensure_whole(model: onnx.ModelProto, subject: str) -> None:
    """Raise FileUnreadable for a folded model that a tool took the functions out of, and left the calls."""
    known = {function.name for function in model.functions if function.domain == FOLDED_DOMAIN}
    called = dict.fromkeys(node.op_type for _, node in walk_nodes(model) if node.domain == FOLDED_DOMAIN)
    gone = [name for name in called if name not in known]
    if gone:
        raise FileUnreadable(
            f"{subject} calls functions that are not in it: {some_of(gone)}. "
            "A tool that does not know functions wrote it after it was folded",
            "Flatten the folded file first, and give the tool the flat one.",
        )
