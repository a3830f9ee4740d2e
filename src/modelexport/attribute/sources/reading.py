"""Reading: what one source says about the modules of a file.

    source            says                                              e.g.
    torch dynamo      node metadata: paths and classes                  ['', 'encoder', 'encoder.fc', 'linear_3']
    node names        TorchScript, TensorFlow, JAX                      /encoder/layer.0/fc/MatMul
    parameter names   which module a weight is stored in                encoder.layer.0.fc.weight
    functions         a local function is a module                      pkg.local::Block
    structure         equal blocks in a row are layers                  layers.0, layers.1, …

A source reads the index of the graph, no weights and no model. It says nothing about nodes that it knows nothing of.
Whoever wrote a file may have written anything: only what `is_module_path` accepts is the path of a module.
To add one: write `read_<source>(graph) -> Reading`, and list it in `find.py`, strongest first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from modelexport.record.hierarchy import ROOT
from modelexport.record.provenance import Confidence, EvidenceKind

# No model is built so deep, and a path costs its depth in many places.
MOST_LEVELS = 64


def is_module_path(text: str) -> bool:
    """Whether text can be the path of a module: `encoder.layer.0`, and the root.

    a..b, .a, a.     no: a level has a name
    a#2              no: this is how the third call of `a` is written
    a\\x1b[31m       no: names are printable, and so can be encoded
    a.a. … .a        no, if there are more than `MOST_LEVELS`
    """
    if text == ROOT:
        return True
    return "#" not in text and text.isprintable() and text.count(".") < MOST_LEVELS and all(text.split("."))


@dataclass(frozen=True)
class Reading:
    """Module paths are dotted, as in `state_dict`; the root is "".

    nodes         by key: the paths of the modules that a node belongs to, mostly one
    initializers  by name: the paths of the modules that hold it
    classes       by path: the qualified name of the class, where the source has it
    kind          of the evidence: a scope that an exporter wrote, a parameter's name, or dataflow
    detail        of the evidence, where a source has several ways to know
    """

    source: str
    confidence: Confidence
    nodes: Mapping[str, tuple[str, ...]]
    initializers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: Mapping[str, str] = field(default_factory=dict)
    kind: EvidenceKind = EvidenceKind.SCOPE
    detail: str = ""
