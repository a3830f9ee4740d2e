"""Verification against a model: run both on the same inputs, compare while they run, and judge.

The model runs twice: a model that draws random numbers has no reference, and is refused (`ModelUnrepeatable`). The
witness shares no code with the strategies that it judges (decision 0009).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from modelexport.api.environment import Clock, need_torch
from modelexport.api.options import VerifyOptions
from modelexport.api.prepare_file import fit_dtype, prepare_for_file
from modelexport.api.prove_attributions import AttributionWitness
from modelexport.api.value_comparison import RunComparison, SampleComparison, compare_stored_outputs, optimize_for_run
from modelexport.errors import InputError, ModelMismatch, ModelUnrepeatable, RuntimeFailed, some_of
from modelexport.graph.difference import measure
from modelexport.graph.file.reading import initializer_arrays
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.operators import random_nodes
from modelexport.graph.related import module_overlap
from modelexport.record.hierarchy import ROOT, Hierarchy
from modelexport.record.results.verification import (
    AttributionProof,
    Difference,
    ParameterCheck,
    Tolerance,
    Verification,
)
from modelexport.verify.divergence import is_rounding, merge_runs
from modelexport.verify.numbers import ReferenceRun
from modelexport.verify.parameter_check import compare_parameters
from modelexport.verify.series import SeenRun
from modelexport.verify.witness import find_first_difference

if TYPE_CHECKING:
    import torch

    from modelexport.capture.arguments import CallArguments
    from modelexport.capture.eager import TensorSpill, WatchedRun
    from modelexport.capture.export import PreparedModel, TracedRun
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun

_TROUBLE = "numbers differ from the model's"


def verify_against_model(
    file: TaggedFile, options: VerifyOptions, clock: Clock, prepared: PreparedModel | None = None
) -> Verification:
    """Weights first, because other weights make every number differ; then each sample; then, once, the proof.

    prepared  the model with its inputs, if it was loaded already
    """
    need_torch("running a model")
    from modelexport.capture.arguments import to_stored_array
    from modelexport.capture.eager import TensorSpill
    from modelexport.capture.hierarchy import state_tensors
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun

    runs = ModelRuns(file, options, clock, prepared)
    with clock.step("parameters"):
        held = {name: to_stored_array(tensor) for name, tensor in state_tensors(runs.first.model).items()}
        parameters = compare_parameters(runs.first.hierarchy, file.provenance, held, initializer_arrays(file))
        _refuse_other_model(file, runs, parameters)
    findings: list[SampleComparison] = []
    proof: AttributionProof | None = None
    with _blame_weights(parameters), open_judged(file, options, clock) as judged:
        # All values, and not only those at borders: the proof looks at every node.
        pieces = PiecewiseRun(judged, often=options.runs_often)
        for run in runs.all():
            with TensorSpill() as spool:
                with clock.step("model"):
                    watched = watch_run(run, spool, options.source.seed)
                with clock.step("file"):
                    finding = compare_run(judged, pieces, run.arguments, watched, spool, options.tolerance)
            # One run proves as much as many: a value either is the one that the module made, or it is not.
            if options.proof and proof is None:
                with clock.step("proof"):
                    seen = SeenRun(watched.run, watched.samples, finding.seen, finding.rounds)
                    # Values that differ prove nothing, for or against: such nodes are left undecided.
                    exact = finding.divergence is None and _is_exact(finding, options.tolerance)
                    trouble = "" if exact else _TROUBLE
                    witness = AttributionWitness(judged, seen, run, trouble=trouble, seed=options.source.seed)
                    proof = witness.prove(judged.provenance)
            findings.append(replace(finding, seen={}))  # that was for the proof, and there may be many inputs
    verification = summarize_samples(file, runs.prepared.source, findings, options, clock)
    return replace(verification, parameters=parameters, proof=proof, notes=(*runs.notes, *verification.notes))


@contextmanager
def open_judged(file: TaggedFile, options: VerifyOptions, clock: Clock) -> Iterator[TaggedFile]:
    """What is run and judged: the file itself, or what ONNX Runtime makes of it."""
    if not options.as_deployed:
        yield file
        return
    # Entered by hand, so that the clock counts the optimization and not what is done inside of the block.
    with ExitStack() as stack:
        with clock.step("optimize"):
            judged = stack.enter_context(optimize_for_run(file))
        yield judged


class ModelRuns:
    """The model, run once on each sample.

    prepared  the model on the device and in the type that were asked for, with its first inputs
    first     the run on these; weights are compared by it before the others are made
    """

    def __init__(
        self, file: TaggedFile, options: VerifyOptions, clock: Clock, prepared: PreparedModel | None = None
    ) -> None:
        self._file, self._options, self._clock = file, options, clock
        self._source = fit_dtype(file, options.source)
        first, *self._more = self._source.samples if prepared is None else (None,)
        self.prepared = prepared or prepare_for_file(file, replace(self._source, inputs=first), clock)
        self.overlap_notes = overlap_notes(file, self.prepared.module, self.prepared.source)
        with clock.step("trace"):
            self.first = self._traced(self.prepared)

    def all(self) -> Iterator[TracedRun]:
        from modelexport.capture.arguments import resample_inputs

        yield self.first
        for inputs in self._more:
            again = replace(self._source.with_module(self.prepared.module), inputs=inputs)
            yield self._traced(prepare_for_file(self._file, again, self._clock))
        for number in range(1 + len(self._more), self._options.samples):
            seed = self._source.seed + number
            if self.prepared.entry is None:
                yield self._trace(replace(self.prepared, inputs=resample_inputs(self.first.arguments, seed)))
            else:
                # A cache of random numbers is none: other tokens are generated.
                again = replace(self._source.with_module(self.prepared.module), seed=seed)
                yield self._trace(prepare_for_file(self._file, again, self._clock))

    @property
    def notes(self) -> tuple[str, ...]:
        random_notes = _random_notes(self._file, self.prepared.module)
        return (*self.overlap_notes, *self.prepared.notes, *self.first.notes, *random_notes)

    def _traced(self, prepared: PreparedModel) -> TracedRun:
        """On inputs that leave the model all of its work, where nobody chose them."""
        from modelexport.capture.onnxruntime.session import assign_inputs

        busy = None
        if self._source.leaves_inputs_open and prepared.entry is None:
            # Models leave out the work of a mask that hides nothing, and the file does it all the same.
            busy = prepared.inputs.with_mask(set(assign_inputs(self._file.proto, prepared.inputs.arrays).values()))
        if busy is not None:
            with suppress(InputError):  # a model may have every right to refuse other inputs
                return self._trace(replace(prepared, inputs=busy))
        return self._trace(prepared)

    def _trace(self, prepared: PreparedModel) -> TracedRun:
        import torch

        from modelexport.capture.export import trace_prepared

        # Not the state that somebody left: a second run with other random numbers is to be one.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._source.seed)
            return trace_prepared(prepared)


def _random_notes(opened: TaggedFile, model: torch.nn.Module) -> Iterator[str]:
    """Dropout and running norms: an exported file has them as in evaluation mode, so the model is run in it, too."""
    from modelexport.capture.isolation import random_layers_in_training, running_norms_in_training

    concerned = (*random_layers_in_training(model), *running_norms_in_training(model))
    if concerned or model.training:
        named = f": {some_of(concerned)}" if concerned else ""
        yield f"the model is in training mode; it was run in evaluation mode{named}"
    yield from note_random_nodes(opened)


def note_random_nodes(opened: TaggedFile) -> Iterator[str]:
    drawing = random_nodes(opened.proto)
    if drawing:
        yield f"{opened.path} draws random numbers each time that it runs: {some_of(list(map(str, drawing)))}"


def overlap_notes(opened: TaggedFile, model: torch.nn.Module, source: str) -> tuple[str, ...]:
    """What to know about a model that is not quite that of the file; ModelMismatch for another one."""
    from modelexport.capture.hierarchy import read_modules

    recorded = opened.provenance.hierarchy
    overlap = module_overlap(recorded, Hierarchy.of(read_modules(model)))
    if not overlap.related:
        raise ModelMismatch(
            f"{opened.path} was not made from {source}: {overlap}",
            f"Give the model that it was exported from, a {recorded.modules[ROOT].class_name}.",
        )
    return overlap.notes


def _refuse_other_model(opened: TaggedFile, runs: ModelRuns, parameters: ParameterCheck) -> None:
    """Raise ModelMismatch where modules are others and most weights, too: no number after this would say anything.

    The same modules with other weights are another version of the model, and are compared.
    """
    differing = len(parameters.differing)
    if runs.overlap_notes and differing > parameters.compared / 2:
        recorded = opened.provenance.hierarchy.modules[ROOT]
        raise ModelMismatch(
            f"{opened.path} was not made from {runs.prepared.source}: {differing} of {parameters.compared} parameters "
            f"differ, and {runs.overlap_notes[0]}",
            f"Give the model that it was exported from, a {recorded.class_name}.",
        )


@contextmanager
def _blame_weights(parameters: ParameterCheck) -> Iterator[None]:
    """A file that cannot be run may be so because of its weights: that they differ is said first."""
    try:
        yield
    except RuntimeFailed as error:
        if not parameters.differing:
            raise
        names = some_of([parameter.name for parameter in parameters.differing])
        said = f"the model's weights are not those of the file ({names})"
        raise RuntimeFailed(f"{said}, and {error.message}", error.hint) from error


def watch_run(run: TracedRun, spool: TensorSpill, seed: int) -> WatchedRun:
    """The run again, seen from inside. Random numbers are other ones, so that a model that needs them is found out."""
    watched = _watch(run, spool, seed + 1)
    if _repeats(run, watched, spool):
        return watched
    from modelexport.capture.eager import TensorSpill as Scratch

    with Scratch() as scratch:
        where = find_first_difference(watched.run, watched.samples, _watch(run, scratch, seed + 2).samples)
    raise ModelUnrepeatable(
        f"{type(run.model).__name__} gives other numbers each time that it runs on the same inputs"
        + (f", from {where} on" if where else ""),
        "Make it deterministic: no random numbers outside of training, or a seed of its own.",
    )


def _watch(run: TracedRun, spool: TensorSpill, seed: int) -> WatchedRun:
    from modelexport.capture.eager import watch_run
    from modelexport.capture.isolation import EXPORT_LOCK, exportable_moe, quiet

    with EXPORT_LOCK, quiet(), exportable_moe(run.model), run.entered():
        return watch_run(run.model, run.arguments, spool, seed)


def _repeats(run: TracedRun, watched: WatchedRun, spool: TensorSpill) -> bool:
    """Whether two runs return the same, within rounding: kernels on several threads may add in another order."""
    from modelexport.capture.arguments import to_array

    kept = {name: number for name, number in watched.run.outputs.items() if number in spool}
    pairs = [(to_array(run.outputs[name]), spool.get(number)) for name, number in kept.items()]
    return all(a.shape == b.shape and measure(a, b, Tolerance()).agrees for a, b in pairs)


def compare_run(
    opened: TaggedFile,
    pieces: PiecewiseRun,
    arguments: CallArguments,
    watched: WatchedRun,
    spool: TensorSpill,
    tolerance: Tolerance,
) -> SampleComparison:
    from modelexport.capture.onnxruntime.bodies import BodyRuns
    from modelexport.capture.onnxruntime.session import bind_inputs

    reference = ReferenceRun(watched.run.calls, dict(enumerate(watched.samples)), spool.__contains__, spool.get)
    observer = RunComparison(opened, reference, watched.run.outputs, tolerance)
    bodies = BodyRuns(opened, observer.see_inside)
    pieces.run(bind_inputs(opened.proto, arguments.arrays), observer.see, bodies.visit)
    compare_stored_outputs(opened, observer)
    return observer.finding(watched.run.calls)


def _is_exact(finding: SampleComparison, tolerance: Tolerance) -> bool:
    """Whether values are where they should be: somebody who chose a tolerance may allow them to be elsewhere.

    Of coarse types it is known how far apart they may be.
    """
    if not tolerance.is_chosen or any(value.is_coarse for value in finding.seen.values()):
        return True
    return all(map(is_rounding, (*finding.outputs.values(), *(call.outputs for call in finding.calls))))


def summarize_samples(
    opened: TaggedFile, reference: str, findings: Sequence[SampleComparison], options: VerifyOptions, clock: Clock
) -> Verification:
    """The worst of all samples: an error that a single input shows is an error of the file."""
    return Verification(
        file=str(opened.path),
        reference=reference,
        samples=len(findings),
        tolerance=options.tolerance,
        calls=merge_runs([finding.calls for finding in findings]),
        outputs=_worst_outputs(findings),
        missing=tuple(dict.fromkeys(name for finding in findings for name in finding.missing)),
        skipped=tuple(dict.fromkeys(name for finding in findings for name in finding.skipped)),
        divergence=next((finding.divergence for finding in findings if finding.divergence is not None), None),
        not_finite=tuple(dict.fromkeys(item for finding in findings for item in finding.not_finite)),
        deployed=options.as_deployed,
        seconds=clock.seconds,
    )


def _worst_outputs(findings: Sequence[SampleComparison]) -> dict[str, Difference]:
    names = dict.fromkeys(name for finding in findings for name in finding.outputs)
    by_name = {name: [finding.outputs[name] for finding in findings if name in finding.outputs] for name in names}
    return {name: worst for name, outputs in by_name.items() if (worst := Difference.worst(outputs)) is not None}
