"""What a model costs, module by module: operations, parameters, and bytes of weights and of what is computed.

Amounts that depend on axes whose size the file leaves open are polynomials of these axes. What is not known is said to
be unknown, with the reason, and never taken for 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from modelexport.record.hierarchy import ModuleCall
from modelexport.record.polynomial import Polynomial

ZERO = Polynomial()
ONCE = Polynomial.of(1)
MEASURES = ("flops", "other", "parameters", "weight_bytes", "activation_bytes")


class Kind(StrEnum):
    """What sort of work an operator does. The first four are what `flops` counts, as torch's flop counter does."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    NORMALIZATION = "normalization"
    MOVEMENT = "movement"
    CONTROL = "control"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NodeCost:
    """One node, in one run of the model; None is unknown.

    module            the path of the module that it is charged to, as it is in a profile: that of its owners whose
                      weight it multiplies by, or the one around them all
    flops             of products: matrix multiplications and convolutions, a multiplication and an addition being 2
    other             operations beside these, such as one for each number that an addition makes
    parameters        elements of the weights that it reads; another node may read them as well
    weight_bytes      the same in bytes, with what is stored beside them: scales, tables, constants
    activation_bytes  of what it makes, unless that follows from weights alone
    reason            why something is not known, or why it does not run
    """

    key: str
    name: str
    op_type: str
    kind: Kind
    owners: tuple[ModuleCall, ...]
    module: str | None
    flops: Polynomial | None
    other: Polynomial | None
    parameters: int
    weight_bytes: int
    activation_bytes: Polynomial | None
    times: Polynomial = ONCE
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Amounts:
    """What belongs to a module. A weight counts once, however many nodes and modules read it.

    unknown  by measure: of how many nodes it is not known. The sum is that of the others
    """

    nodes: int = 0
    flops: Polynomial = ZERO
    other: Polynomial = ZERO
    parameters: int = 0
    weight_bytes: int = 0
    activation_bytes: Polynomial = ZERO
    unknown: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """One module, all of its calls together.

    path   `None` for what belongs to no module
    calls  how often it was called in the recorded run
    own    of nodes and weights that belong to none of the modules inside of it
    total  with those
    """

    path: str | None
    class_name: str
    calls: int
    own: Amounts
    total: Amounts


@dataclass(frozen=True)
class OpenAxis:
    """A size that the file leaves open.

    source  what it is the size of, in words
    given   whether it is an axis of the model's inputs; the others depend on the content of what the model is fed
    """

    name: str
    source: str
    given: bool = True


@dataclass(frozen=True)
class Cost:
    """
    axes     sizes that the file leaves open, those of inputs first
    at       the sizes that some of them were given
    modules  in the order of the hierarchy; what belongs to no module comes last
    """

    file: str
    axes: tuple[OpenAxis, ...]
    at: Mapping[str, int]
    nodes: tuple[NodeCost, ...]
    modules: tuple[ModuleCost, ...]
    total: Amounts
    notes: tuple[str, ...] = ()

    @property
    def by_key(self) -> Mapping[str, NodeCost]:
        return {node.key: node for node in self.nodes}

    @property
    def by_path(self) -> Mapping[str | None, ModuleCost]:
        return {module.path: module for module in self.modules}

    @property
    def unknown(self) -> tuple[NodeCost, ...]:
        return tuple(node for node in self.nodes if None in (node.flops, node.other, node.activation_bytes))
