"""Verification result: how far each module's numbers are right, and what the values say about each node's module.

    numbers      Difference of each call's outputs from the reference, and the first call that diverges
    attribution  PROVED, ENCLOSED, CONTRADICTED, … for each node (`Verdict`)

The second is the word of a witness that shares nothing with the strategies which attributed the nodes (decision 0009).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from modelexport.record.hierarchy import ModuleCall


@dataclass(frozen=True, slots=True)
class Difference:
    """How far tensors at one place of two runs are apart; the worst where several were compared.

    max_abs   the largest difference between two elements
    max_rel   the largest difference, relative to the element and the tensor's usual size (its root mean square)
    sqnr      signal to noise in decibels; infinite where the tensors are equal
    unlike    elements that are not finite in one of them only, or not in the same way
    excess    by how much an element differs by more than its size explains; 0 if none does, or a limit was chosen
    nothing_finite  all elements are NaN or infinite in both: no numbers were compared
    """

    max_abs: float
    max_rel: float
    sqnr: float
    cosine: float
    unlike: int
    agrees: bool
    excess: float = 0.0
    nothing_finite: bool = False

    @property
    def too_small(self) -> bool:
        """Too small to tell: it differs by more than its size explains, and by no more than rounding may."""
        return self.agrees and self.excess > 0

    @property
    def equal(self) -> bool:
        """Not one bit of noise."""
        return self.sqnr == math.inf and not self.nothing_finite

    @classmethod
    def worst(cls, differences: Iterable[Difference]) -> Difference | None:
        """None if there was nothing to compare."""
        measured = list(differences)
        if not measured:
            return None

        def rank(figure: float) -> float:
            # What could not be measured is the worst; a bare NaN would win or lose by its position.
            return math.inf if math.isnan(figure) else figure

        return cls(
            max_abs=max((item.max_abs for item in measured), key=rank),
            max_rel=max((item.max_rel for item in measured), key=rank),
            sqnr=min(item.sqnr for item in measured),
            cosine=min((item.cosine for item in measured), key=lambda cosine: -rank(-cosine)),
            unlike=sum(item.unlike for item in measured),
            agrees=all(item.agrees for item in measured),
            excess=max(item.excess for item in measured),
            nothing_finite=all(item.nothing_finite for item in measured),
        )


class Status(StrEnum):
    """What the numbers of one module call say.

    OK            what it returned agrees
    DIVERGES      what it was given agrees, and what it returned does not
    FOLLOWS       what it was given differs already
    NOT_COMPARED  none of what it returned is in the graph (fused, folded, or nothing to do)
    """

    OK = "ok"
    DIVERGES = "diverges"
    FOLLOWS = "follows"
    NOT_COMPARED = "not compared"


@dataclass(frozen=True, slots=True)
class CallNumbers:
    """One module call, in the order in which calls end.

    reason      why nothing was compared
    fused_with  the calls that share a node with it, if its result is lost inside of that
    effect      decibels of the outputs over the noise that this call adds by itself; None if it was not measured
    """

    call: ModuleCall
    class_name: str
    inputs: Difference | None
    outputs: Difference | None
    status: Status
    reason: str = ""
    fused_with: tuple[ModuleCall, ...] = ()
    effect: float | None = None

    @property
    def lost(self) -> float | None:
        """Decibels between what goes in and what comes out; None where one of them was not compared.

        What goes into an embedding are integers: of its loss nothing is known, however noisy it is.
        """
        if self.outputs is None or self.inputs is None:
            return None
        return max(0.0, min(self.inputs.sqnr, _FLOAT_NOISE) - min(self.outputs.sqnr, _FLOAT_NOISE))

    @property
    def rank(self) -> tuple[int, float, float]:
        """Order of calls: by effect at the outputs, then by loss; those without a known loss come last, unranked."""
        noise = math.inf if self.outputs is None else self.outputs.sqnr
        if self.lost is None:
            return 2, noise, 0.0
        return (1, -self.lost, noise) if self.effect is None else (0, self.effect, -self.lost)


# Decibels between a float and its last bit: more than that is no difference at all.
_FLOAT_NOISE = 140.0


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where the numbers go wrong first.

    calls    the module call; several where one fused node does the work of all of them, or, without `inputs`, where
             what passes between them is not known and any of them may be the cause
    node     the key of the node whose value is the first that differs
    inputs   how well what goes in still agrees; None if nothing of it is in both
    """

    calls: tuple[ModuleCall, ...]
    class_names: tuple[str, ...]
    node: str
    inputs: Difference | None
    outputs: Difference
    name: str = ""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """Where NaN or infinity comes up first: a node whose inputs are finite and whose output is not.

    kind  `NaN` or `Inf`
    both  PyTorch (or the file compared with) has it at that place too
    """

    kind: str
    node: str
    calls: tuple[ModuleCall, ...]
    both: bool


@dataclass(frozen=True, slots=True)
class SuddenLoss:
    """A module call that agrees within the tolerance, and loses more decibels than rounding explains."""

    call: ModuleCall
    class_name: str
    inputs: Difference
    outputs: Difference


@dataclass(frozen=True, slots=True)
class ParameterDifference:
    """A parameter that the model holds with other numbers than the file. `name` is that in the state_dict."""

    name: str
    initializer: str
    max_abs: float


@dataclass(frozen=True, slots=True)
class ParameterCheck:
    """How many parameters could be compared with the file's weights, and those that differ.

    unknown  names of those that have no copy in the file: fused, quantized, rescaled, or simply others
    """

    compared: int
    differing: tuple[ParameterDifference, ...] = ()
    unknown: tuple[str, ...] = ()


# What is said of a branch that was not taken, and of a body that ran not once.
NOT_RUN = "did not run"


class ShownBy(StrEnum):
    """What shows that a node is its owners' work: PROVED by the first three, ENCLOSED by the others.

    VALUE         exactly they issued its value
    SERIES        only they issued its value in several runs, of other inputs and sizes
    WEIGHTS       only they read the weights that it reads
    BETWEEN       it lies between shown nodes of theirs
    READERS       all that reads it is their work
    FIRST_READER  a size, a constant or a copy that several modules read: they are the first
    CALLED        a size, a constant or a copy that several modules read, all of which they call
    BESIDE        they and others issued its value, and it is beside shown nodes of theirs
    """

    VALUE = "its value"
    SERIES = "its value in several runs"
    WEIGHTS = "the weights that it reads"
    BETWEEN = "between its module's nodes"
    READERS = "all that reads it"
    FIRST_READER = "what reads it first"
    CALLED = "modules that its module calls read it"
    BESIDE = "its value and what is beside it"


class Verdict(StrEnum):
    """What values say about the module that a node is credited to.

    PROVED        its value was issued by exactly that module call
    ENCLOSED      it lies between proved nodes of that call
    NOT_PROVABLE  values cannot tell; the reason says why
    CONTRADICTED  another call issued its value, or the work between proved nodes is that of another call
    UNATTRIBUTED  it is credited to nobody
    """

    PROVED = "proved"
    ENCLOSED = "enclosed"
    NOT_PROVABLE = "not provable"
    CONTRADICTED = "contradicted"
    UNATTRIBUTED = "unattributed"


class Fault(StrEnum):
    """How the modules that a contradicted node is credited to are wrong.

    TOO_WIDE        one of them had no part in its value, another one had
    TOO_NARROW      a module that had a part in it is not named
    TOO_SHALLOW     it is credited to a module around the one whose work it is
    ANOTHER_MODULE  it is the work of a module elsewhere
    """

    TOO_WIDE = "too wide"
    TOO_NARROW = "too narrow"
    TOO_SHALLOW = "too shallow"
    ANOTHER_MODULE = "another module"


@dataclass(frozen=True, slots=True)
class NodeProof:
    """
    reason   why it is not provable or contradicted; why its own values say nothing, if it is enclosed all the same
    claimed  the module calls that the record credits it to
    issued   the module calls that values point to; empty where they point to none
    compute  it makes float values that depend on the model's inputs
    fault    how its attribution is wrong, if it is contradicted
    shown_by  what shows that it is its owners' work, if it is proved or enclosed
    """

    key: str
    name: str
    op_type: str
    claimed: tuple[ModuleCall, ...]
    verdict: Verdict
    reason: str = ""
    issued: tuple[ModuleCall, ...] = ()
    compute: bool = False
    fault: Fault | None = None
    shown_by: ShownBy | None = None

    @property
    def is_shown(self) -> bool:
        """Whether it is proved or enclosed."""
        return self.verdict in (Verdict.PROVED, Verdict.ENCLOSED)


@dataclass(frozen=True)
class AttributionProof:
    """The verdict on every node, in file order."""

    nodes: tuple[NodeProof, ...]

    @cached_property
    def counts(self) -> Mapping[Verdict, int]:
        counted = Counter(node.verdict for node in self.nodes)
        return {verdict: counted[verdict] for verdict in Verdict}

    @cached_property
    def reasons(self) -> Mapping[str, int]:
        """Why nodes are not provable, most frequent first."""
        reasons = Counter(node.reason for node in self.nodes if node.verdict is Verdict.NOT_PROVABLE)
        return dict(reasons.most_common())

    @cached_property
    def shown_by(self) -> Mapping[ShownBy, int]:
        """What proves or encloses nodes."""
        counted = Counter(node.shown_by for node in self.nodes)
        return {shown_by: counted[shown_by] for shown_by in ShownBy if counted[shown_by]}

    @cached_property
    def faults(self) -> Mapping[Fault, int]:
        """How contradicted nodes are wrong."""
        counted = Counter(node.fault for node in self.contradicted)
        return {fault: counted[fault] for fault in Fault if counted[fault]}

    @property
    def contradicted(self) -> tuple[NodeProof, ...]:
        return tuple(node for node in self.nodes if node.verdict is Verdict.CONTRADICTED)

    @cached_property
    def shown(self) -> frozenset[str]:
        """Keys of the nodes that are proved or enclosed."""
        return frozenset(node.key for node in self.nodes if node.is_shown)

    @property
    def compute(self) -> int:
        """Nodes that make floats from the model's inputs."""
        return sum(node.compute for node in self.nodes)

    @property
    def compute_shown(self) -> int:
        """Those of them that are proved or enclosed."""
        return sum(node.compute and node.is_shown for node in self.nodes)


@dataclass(frozen=True)
class Tolerance:
    """An element may differ by atol + rtol × (its size + the root mean square of its tensor).

    atol        None: nothing, or as much as rounding changes where the numbers are the rest of larger ones
    rtol        None: what the coarser of the two tensors' types allows
    min_sqnr    if given, this decides in their place
    of_type     `rtol` is what a coarse type allows: single elements may differ by more if all of them together do not
    """

    atol: float | None = None
    rtol: float | None = None
    min_sqnr: float | None = None
    of_type: bool = False

    @property
    def is_chosen(self) -> bool:
        return self != Tolerance()


@dataclass(frozen=True)
class Verification:
    """
    reference   what the file was compared with: a model's name, or the path of another file
    samples     how many inputs it was run on; differences are the worst over all of them
    skipped     outputs that were not compared: their type cannot be read
    divergence  where numbers go wrong first, if they do
    deployed    the file was compared as ONNX Runtime runs it, with all optimizations
    parameters  None where two files were compared
    proof       None where two files were compared, or it was not asked for
    sudden_losses  modules that agree, and lose more than rounding explains; only where all numbers agree
    frozen      what the file has of its sample for good: how it is wrong on inputs that are not like it
    """

    file: str
    reference: str
    samples: int
    tolerance: Tolerance
    calls: tuple[CallNumbers, ...]
    outputs: Mapping[str, Difference]
    missing: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    divergence: Divergence | None = None
    not_finite: tuple[NotFinite, ...] = ()
    parameters: ParameterCheck | None = None
    proof: AttributionProof | None = None
    notes: tuple[str, ...] = ()
    deployed: bool = False
    frozen: tuple[str, ...] = ()
    sudden_losses: tuple[SuddenLoss, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict, compare=False)

    @property
    def numbers_agree(self) -> bool:
        return self.divergence is None and all(item.agrees for item in self.outputs.values())

    @property
    def ok(self) -> bool:
        """Something was compared, nothing differs, is frozen or missing, and no attribution is contradicted."""
        weights = self.parameters is None or not self.parameters.differing
        tags = self.proof is None or not self.proof.contradicted
        return bool(self.outputs) and not self.missing and self.numbers_agree and not self.frozen and weights and tags

    def ranked(self) -> tuple[CallNumbers, ...]:
        return tuple(sorted(self.calls, key=lambda item: item.rank))
