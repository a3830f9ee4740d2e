"""One run of a PyTorch model as it happened: who issued which value, what each module was given and returned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelexport.record.hierarchy import ModuleCall


@dataclass(frozen=True, slots=True)
class IssuedOp:
    """One operator that torch computed, and the module call that was open. Values are known by number.

    view  it only looks at the memory of what it reads in another way
    """

    name: str
    call: ModuleCall
    reads: tuple[int, ...]
    makes: tuple[int, ...]
    view: bool = False


@dataclass(frozen=True, slots=True)
class CallTensors:
    """What one module call was given and what it returned, by number."""

    call: ModuleCall
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class EagerRun:
    """
    calls     in the order in which they end
    inputs    of the model, by the name that the ONNX graph gives them
    outputs   of the model, by name
    computed  values that depend on what the model was given
    given     values that are what the model was given, or look at it in another way
    hooked    paths of modules that somebody attached hooks to: what these do is done around a call, not inside of it
    """

    ops: tuple[IssuedOp, ...]
    calls: tuple[CallTensors, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    computed: frozenset[int]
    given: frozenset[int] = frozenset()
    hooked: frozenset[str] = frozenset()
