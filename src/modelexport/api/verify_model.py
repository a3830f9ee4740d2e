"""Verification against a model: run both on the same inputs, compare while they run, and judge.

The model runs twice: a model that draws random numbers has no reference, and is refused (`ModelUnrepeatable`). The
witness shares no code with the strategies that it judges (decision 0009).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from modelexport.api.environment import Clock, need_torch
from modelexport.api.model_runs import ModelRuns, RunNoise, measure_noise, watch_run
from modelexport.api.options import VerifyOptions
from modelexport.api.prove_attributions import AttributionWitness
from modelexport.api.resynchronized_run import run_resynchronized
from modelexport.api.value_comparison import (
    RunComparison,
    SampleComparison,
    compare_stored_outputs,
    optimize_for_run,
    pair_outputs,
)
from modelexport.errors import ModelMismatch, RuntimeFailed, some_of
from modelexport.graph.file.mapped_memory import resident_memory
from modelexport.graph.file.reading import initializer_arrays
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.types import dynamic_axes_of
from modelexport.record.amounts import format_bytes
from modelexport.record.hierarchy import ROOT, ModuleCall
from modelexport.record.results.verification import (
    AttributionProof,
    Difference,
    ParameterCheck,
    SuddenLoss,
    Tolerance,
    Verification,
)
from modelexport.verify.divergence import is_rounding, merge_runs
from modelexport.verify.evidence import OTHER_NUMBERS
from modelexport.verify.numbers import ReferenceRun
from modelexport.verify.parameter_check import compare_parameters
from modelexport.verify.series import SeenRun

if TYPE_CHECKING:
    from modelexport.capture.arguments import CallArguments
    from modelexport.capture.eager import WatchedRun
    from modelexport.capture.export import PreparedModel
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun


def verify_against_model(
    file: TaggedFile, options: VerifyOptions, clock: Clock, prepared: PreparedModel | None = None
) -> Verification:
    """Weights first, because other weights make every number differ; then each sample; then, once, the proof.

    prepared  the model with its inputs, if it was loaded already
    """
    need_torch("running a model")
    from modelexport.capture.arguments import to_stored_array
    from modelexport.capture.hierarchy import state_tensors
    from modelexport.capture.onnxruntime.piecewise import PiecewiseRun
    from modelexport.capture.tensor_spill import TensorSpill

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
                    rounding = measure_noise(run, watched, spool, options.source.seed)
                    finding = compare_run(judged, pieces, run.arguments, watched, rounding, options.tolerance)
            # One run proves as much as many: a value either is the one that the module made, or it is not.
            if options.proof and proof is None:
                with clock.step("proof"):
                    seen = SeenRun(watched.run, watched.samples, finding.seen, finding.rounds)
                    # Values that differ prove nothing, for or against: such nodes are left undecided.
                    exact = finding.divergence is None and _is_exact(finding, options.tolerance)
                    if not exact:
                        seen = run_resynchronized(judged, run, seen, options.source.seed)
                    trouble = "" if exact else OTHER_NUMBERS
                    witness = AttributionWitness(judged, seen, run, trouble=trouble, seed=options.source.seed)
                    proof = witness.prove(judged.provenance)
            findings.append(replace(finding, seen={}))  # that was for the proof, and there may be many inputs
    verification = summarize_samples(file, runs.prepared.source, findings, options, clock)
    verification = replace(verification, parameters=parameters, proof=proof)
    frozen, notes = _find_frozen(file, runs, verification, clock, options.memory) if options.branches else ((), ())
    return replace(verification, frozen=frozen, notes=(*runs.notes, *verification.notes, *notes))


def _find_frozen(
    file: TaggedFile, runs: ModelRuns, verification: Verification, clock: Clock, memory: int | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Where the file is right only for inputs like the samples, and notes; where it is wrong, no more is to be learnt.

    A file of few bits that is right within decibels has no right numbers on inputs that nobody chose.
    """
    from modelexport.capture.output_check import OutputChecker

    wrong = not verification.numbers_agree or (
        verification.parameters is not None and verification.parameters.differing
    )
    if wrong or verification.tolerance.min_sqnr is not None or runs.prepared.entry is not None:
        return (), ()
    weights = sum(data.nbytes for data in file.weights.values())
    if memory is not None and (resident_memory() or 0) + weights > memory:
        whole = f"that takes the whole file, with {format_bytes(weights)} of weights, and memory is limited"
        return (), (f"inputs of other branches were not searched for: {whole}",)
    names = dict(pair_outputs(file.graph.outputs, runs.first.outputs))
    checker = OutputChecker(file.path, runs.first, verification.tolerance, file.proto, names)
    notes: list[str] = []
    try:
        with clock.step("branches"):
            if not checker.check().ok:
                return (), ()  # optimized as a whole, it has other numbers already on the sample
            for frozen in checker.find_frozen(dynamic_axes_of(file.proto, runs.prepared.axes), runs.path):
                if not frozen.refused:
                    return (frozen.message,), tuple(notes)
                notes = notes or [frozen.message]  # one size that is refused is as good as many
    except RuntimeFailed:  # a file that runs in pieces need not run as a whole
        return (), ()
    return (), (*notes, *checker.undecided)


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


def compare_run(
    opened: TaggedFile,
    pieces: PiecewiseRun,
    arguments: CallArguments,
    watched: WatchedRun,
    rounding: RunNoise,
    tolerance: Tolerance,
) -> SampleComparison:
    from modelexport.capture.onnxruntime.bodies import BodyRuns
    from modelexport.capture.onnxruntime.session import bind_inputs

    spool, samples = rounding.spool, dict(enumerate(watched.samples))
    reference = ReferenceRun(watched.run.calls, samples, spool.__contains__, spool.get, rounding.settle, rounding.of)
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
        # Of the first input that shows them; beside numbers that differ they say nothing.
        sudden_losses=_first_losses(findings) if all(finding.divergence is None for finding in findings) else (),
        deployed=options.as_deployed,
        seconds=clock.seconds,
    )


def _first_losses(findings: Sequence[SampleComparison]) -> tuple[SuddenLoss, ...]:
    by_call: dict[ModuleCall, SuddenLoss] = {}
    for loss in (loss for finding in findings for loss in finding.sudden_losses):
        by_call.setdefault(loss.call, loss)
    return tuple(by_call.values())


def _worst_outputs(findings: Sequence[SampleComparison]) -> dict[str, Difference]:
    names = dict.fromkeys(name for finding in findings for name in finding.outputs)
    by_name = {name: [finding.outputs[name] for finding in findings if name in finding.outputs] for name in names}
    return {name: worst for name, outputs in by_name.items() if (worst := Difference.worst(outputs)) is not None}
