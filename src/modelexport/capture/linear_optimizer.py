"""Linear optimizer: torch's own exporter and optimizer, with work that grows as the graph does and not as its square.

onnxscript rewrites a graph by rules, and tries every rule at every node. Some tries look at much more than they need:

    Slice(x, 0, 4), Slice(x, 4, 8)  ──►  Split(x)      a rule whose pattern has two outputs

    onnxscript    at every node, lists all nodes of the graph and tries each Slice among them as the second one
    here          at a Slice alone, tries the readers of `x`, in the order that they have in the graph

A rule is not tried at all at a node whose operator is not the one that its pattern ends in. Rules, their order, their
checks and what they put in are onnxscript's own: only tries that cannot succeed are left out, so that the graph is the
same to the byte (nearby_matches.py). Likewise torch makes a table of all weights anew for each of them; here it is made
once. Both hold for the code that was read for them. Where it is another, it is left as it is.

https://github.com/microsoft/onnxscript/blob/main/onnxscript/rewriter/_matcher.py
https://github.com/pytorch/pytorch/blob/main/torch/_export/utils.py
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module, metadata
from operator import attrgetter
from typing import Any

from modelexport.capture.isolation import replace_attributes


@dataclass(frozen=True)
class KnownCode:
    """What a replacement was written for.

    versions  of distributions
    digests   by function: the beginning of the SHA-256 of its source
    """

    versions: dict[str, str]
    digests: dict[str, str]

    def find_unknown(self) -> tuple[str, ...]:
        """What is installed otherwise."""
        versions = [name for name, known in self.versions.items() if _version(name) != known]
        return (*versions, *(name for name, known in self.digests.items() if _digest(name) != known))


REWRITER = KnownCode(
    {"onnxscript": "0.7.2", "onnx-ir": "1.1.0"},
    {
        "onnxscript.rewriter._rewrite_rule:RewriteRuleSet._apply_to_graph_or_function": "cad86068fc8ed908",
        "onnxscript.rewriter._rewrite_rule:RewriteRule.try_rewrite": "38a4cd55fd33ca0e",
        "onnxscript.rewriter._rewrite_rule:Pattern.match": "88e73a435e8719e0",
        "onnxscript.rewriter._matcher:SimplePatternMatcher.match": "c08f09d8639ed525",
        "onnxscript.rewriter._matcher:SimplePatternMatcher._init_match": "cbbf4ee09dd31980",
        "onnxscript.rewriter._matcher:SimplePatternMatcher._multi_match": "4325414f56584c80",
        "onnxscript.rewriter._matcher:SimplePatternMatcher._match_node": "e206bdae858ef66b",
        "onnxscript.rewriter._matcher:SimplePatternMatcher._match_value": "475ee6aff6457f40",
        "onnxscript.rewriter._matcher:SimplePatternMatcher._match_node_output": "aa284b314b68b333",
        "onnxscript.rewriter._pattern_ir:NodePattern.matches": "273ede61117039fa",
        "onnxscript.rewriter._basics:MatchResult.bind": "6c1a50074d5ce658",
        "onnxscript.rewriter._basics:MatchResult.bind_value": "5fbbf70e3409ee6e",
    },
)
SIGNATURE = KnownCode(
    {"torch": "2.13.0"},
    {
        "torch._export.utils:_populate_param_buffer_metadata_to_new_gm": "89e75119b33fa818",
        "torch.export.graph_signature:ExportGraphSignature.inputs_to_parameters.fget": "9570497adc19a1c4",
        "torch.export.graph_signature:ExportGraphSignature.inputs_to_buffers.fget": "46d089e80e39192e",
    },
)


@contextmanager
def linear_rewriting() -> Iterator[None]:
    """While this is open, onnxscript leaves out what cannot match; one that is not known works as it always does."""
    if REWRITER.find_unknown():
        yield
        return
    from modelexport.capture.nearby_matches import rewriter_patches

    with replace_attributes(rewriter_patches()):
        yield


@contextmanager
def linear_signatures() -> Iterator[None]:
    """While this is open, torch.export lists the weights of a program once for all of them and not for each."""
    if SIGNATURE.find_unknown():
        yield
        return
    users = [import_module(name) for name in ("torch.export.exported_program", "torch.export._trace")]
    name = "_populate_param_buffer_metadata_to_new_gm"
    with replace_attributes([(user, name, _with_tables) for user in users]):
        yield


def _with_tables(populate: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    return lambda metadata_of, module, signature: populate(metadata_of, module, _Tables(signature))


class _Tables:
    """Two properties of a graph signature, which are made from the whole signature whenever they are read."""

    def __init__(self, signature: Any) -> None:
        self._signature = signature

    @cached_property
    def inputs_to_parameters(self) -> Any:
        return self._signature.inputs_to_parameters

    @cached_property
    def inputs_to_buffers(self) -> Any:
        return self._signature.inputs_to_buffers


def _version(distribution: str) -> str:
    """Without the build that it is for, `+cpu`."""
    try:
        return metadata.version(distribution).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _digest(name: str) -> str:
    """Of the code that runs, and not of a function that it is wrapped around."""
    module, _, path = name.partition(":")
    try:
        function = attrgetter(path)(import_module(module))
        source = inspect.getsource(function.__code__)
    except (AttributeError, ImportError, OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()[:16]
