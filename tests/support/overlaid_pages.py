"""What `profile` and `verify` would write about the small file."""

from __future__ import annotations

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.results.profile import ModuleTime, NodeTime, Profile, SumCheck
from modelexport.record.results.verification import (
    AttributionProof,
    CallNumbers,
    Difference,
    NodeProof,
    Status,
    Tolerance,
    Verdict,
    Verification,
)
from modelexport.show.data.results import to_json

OWN_TIMES = {
    "": 1.0,
    "emb": 2.0,
    "layers": 0.0,
    "layers.0": 4.0,
    "layers.0.fc": 8.0,
    "layers.1": 16.0,
    "layers.1.fc": 32.0,
}
CLASSES = {"": "Net", "emb": "Embedding", "layers": "ModuleList", "layers.0": "Block", "layers.1": "Block"}


def class_of(path: str) -> str:
    return CLASSES.get(path, "Linear")


def profile_text(file: str = "small.onnx") -> str:
    modules = [_module(path, own) for path, own in OWN_TIMES.items()]
    node = NodeTime("h0", "node_h0", "MatMul", (ModuleCall("layers.0.fc"),), "layers.0.fc", 8.0, 1, "CPU")
    whole = sum(OWN_TIMES.values())
    return to_json(
        Profile(
            file, 20, 5, "all", ("CPU",), (), whole, whole, whole, 0.1, 0.0, SumCheck(1, 1), (node,), tuple(modules)
        )
    )


def _module(path: str, own: float) -> ModuleTime:
    inside = sum(time for other, time in OWN_TIMES.items() if other.startswith(path))
    return ModuleTime(path, class_of(path), inside, own, 0.1, own, 1, 1, 1, {}, {})


def verification_text(file: str = "small.onnx") -> str:
    good, bad = (
        Difference(size, size, sqnr, 1.0, 0, agrees) for size, sqnr, agrees in ((1e-7, 120, True), (0.5, 12, False))
    )
    calls = (
        CallNumbers(ModuleCall("emb"), "Embedding", None, good, Status.OK),
        CallNumbers(ModuleCall("layers.0.fc"), "Linear", good, bad, Status.DIVERGES),
        CallNumbers(ModuleCall("layers.1"), "Block", None, None, Status.NOT_COMPARED, "fused"),
    )
    proof = AttributionProof((NodeProof("h0", "node_h0", "MatMul", (ModuleCall("layers.0.fc"),), Verdict.PROVED),))
    return to_json(Verification(file, "my.nets", 1, Tolerance(), calls, {"y": bad}, proof=proof))
