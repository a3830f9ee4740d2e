"""Verification for people: where numbers go wrong, and what values say about attributions.

    int8.onnx against bert.onnx · 1 input · as exact as the number formats are

    module                          calls  in dB  out dB  lost dB  effect at outputs  max |Δ|    cosine  status
    encoder.layer.0.attention.self  1      140.0    41.2     98.8            37.4 dB  3.1e-02  0.999962  diverges

    first divergence: embeddings.word_embeddings (Embedding)   SQNR 43 dB   (inputs are equal)
    attribution: 288 nodes · 243 proved by value · 31 enclosed · 14 not provable · 0 contradicted

Which modules have a row is decided in `verification_rows.py`.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from modelexport.errors import some_of
from modelexport.record.results import verification as results
from modelexport.show.text.console import (
    cosine_text,
    counted,
    decibels_text,
    difference_text,
    modules_text,
    note_lines,
    plain,
    reasons_text,
    seconds_line,
    share_text,
    table,
)
from modelexport.show.text.verification_rows import Gap, ModuleNumbers, Shown, by_module, in_order, ranked
from modelexport.show.text.verification_verdict import NOTHING_FINITE, TOO_SMALL, verdict_line

_LISTED = 20  # contradicted nodes; --all lists the others


def proof_tables(proof: results.AttributionProof, everything: bool) -> Iterator[RenderableType]:
    """Counts of all nodes, then those that values contradict: these are faults of the record."""
    yield _counts_line(proof)
    if proof.compute:
        shown = f"{proof.compute_shown:,} are proved or enclosed ({share_text(proof.compute_shown / proof.compute)})"
        every = f"of all nodes, {share_text(sum(node.is_shown for node in proof.nodes) / len(proof.nodes))}"
        yield Text(f"  of {proof.compute:,} nodes that compute floats from the inputs, {shown}; {every}", "dim")
    if not proof.contradicted:
        return
    listed = proof.contradicted if everything else proof.contradicted[:_LISTED]
    nodes_table = table("Contradicted", "node", "operator", "credited to", "values say", "why")
    for node in listed:
        name, claimed = plain(node.name or node.key), plain(modules_text(node.claimed))
        issued, why = plain(modules_text(node.issued), "red"), plain(f"{node.fault}: {node.reason}", "dim")
        nodes_table.add_row(name, plain(node.op_type, "cyan"), claimed, issued, why)
    yield from (Text(), nodes_table)
    if len(proof.contradicted) > len(listed):
        yield Text(f"… and {len(proof.contradicted) - len(listed)} more (--all)", "dim")
    yield Text()


def _counts_line(proof: results.AttributionProof) -> Text:
    """Contradictions are the last, and red: they are what the proof is for."""
    counts = proof.counts
    reasons = f" ({reasons_text(proof.reasons)})" if proof.reasons else ""
    parts = [
        f"attribution: {len(proof.nodes):,} {'node' if len(proof.nodes) == 1 else 'nodes'}",
        f"{counts[results.Verdict.PROVED]:,} proved by value",
        f"{counts[results.Verdict.ENCLOSED]:,} enclosed",
        f"{counts[results.Verdict.NOT_PROVABLE]:,} not provable{reasons}",
    ]
    if counts[results.Verdict.UNATTRIBUTED]:
        parts.append(f"{counts[results.Verdict.UNATTRIBUTED]:,} unattributed")
    contradicted = counts[results.Verdict.CONTRADICTED]
    kinds = {str(fault): count for fault, count in proof.faults.items()}
    faults = f" ({reasons_text(kinds)})" if kinds else ""
    line = plain(" · ".join(parts)).append(" · ")
    return line.append(f"{contradicted:,} contradicted{faults}", "bold red" if contradicted else "green")


_LISTED_PARAMETERS = _LISTED_FUSIONS = _LISTED_LOSSES = 5  # --all lists the others
_STYLES = {
    results.Status.OK: "green",
    results.Status.DIVERGES: "red",
    results.Status.FOLLOWS: "yellow",
    results.Status.NOT_COMPARED: "dim",
}
_EFFECT = "effect at outputs"
_NUMBERS = ("calls", "in dB", "out dB", "lost dB", _EFFECT, "max |Δ|", "SQNR dB", "cosine")


def verification_tables(verification: results.Verification, shown: Shown) -> Iterator[RenderableType]:
    """From the whole to the part: weights, modules, outputs, where it begins, attributions, verdict."""
    yield _head(verification)
    if verification.parameters is not None:
        yield from _parameters(verification.parameters, shown)
        yield from _unknown_parameters(verification, shown)
    yield Text()
    yield from _modules(verification, shown)
    yield from _outputs(verification.outputs)
    yield Text()
    yield from _origins(verification)
    yield from _sudden_losses(verification, shown)
    if verification.proof is not None:
        yield from proof_tables(verification.proof, shown.everything)
    elif verification.parameters is not None:
        yield Text("attribution: not looked at", "dim")
    yield verdict_line(verification)
    yield from note_lines(verification.notes)
    if shown.verbose and verification.seconds:
        yield seconds_line(verification.seconds)


def _head(verification: results.Verification) -> Text:
    compared = plain(f"{verification.file} against {verification.reference}", "bold")
    deployed = " · as ONNX Runtime runs it" if verification.deployed else ""
    how = f"{deployed} · {counted(verification.samples, 'input')} · {_allowed(verification.tolerance)}"
    return Text().append_text(compared).append(how, "dim")


def _allowed(tolerance: results.Tolerance) -> str:
    """Tolerances as they were asked for; those of the number formats are not spelled out."""
    if tolerance.min_sqnr is not None:
        return f"at least {tolerance.min_sqnr:g} dB asked for"
    if tolerance.atol is None and tolerance.rtol is None:
        return "as exact as the number formats are"
    limits = (("atol", tolerance.atol), ("rtol", tolerance.rtol))
    return ", ".join(f"{name} {'by number format' if value is None else f'{value:g}'}" for name, value in limits)


def _parameters(check: results.ParameterCheck, shown: Shown) -> Iterator[RenderableType]:
    """First, because other weights explain every other difference."""
    if not check.differing:
        if shown.verbose:
            yield plain(f"{counted(check.compared, 'parameter')} compared, all equal", "dim")
        return
    differ = f"{counted(check.compared, 'parameter')} {'differs' if len(check.differing) == 1 else 'differ'}"
    yield Text(f"the model's weights are not those of the file: {len(check.differing)} of {differ}", "bold red")
    listed = check.differing if shown.everything else check.differing[:_LISTED_PARAMETERS]
    for parameter in listed:
        name = plain(f"  {parameter.name}")
        if parameter.initializer != parameter.name:
            name.append_text(plain(f" ({parameter.initializer})", "dim"))
        yield name.append(f"   max |Δ| {difference_text(parameter.max_abs)}")
    yield from _more(len(check.differing) - len(listed))


def _unknown_parameters(verification: results.Verification, shown: Shown) -> Iterator[RenderableType]:
    """They matter where something is wrong: the fault may be in one of them."""
    unknown = () if verification.parameters is None else verification.parameters.unknown
    if unknown and (shown.verbose or not verification.numbers_agree):
        listed = some_of(unknown, len(unknown) if shown.everything else _LISTED_PARAMETERS)
        yield plain(f"no copy in the file, not compared: {listed}", "dim")


def _more(number: int) -> Iterator[Text]:
    if number:
        yield Text(f"  … and {number} more (--all)", "dim")


def _modules(verification: results.Verification, shown: Shown) -> Iterator[RenderableType]:
    """By loss for two files, else in the order of execution, in which the first fault is the cause."""
    modules = by_module(verification.ranked() if shown.by_loss else verification.calls)
    if not any(module.compared for module in modules):
        yield Text("no module could be compared", "yellow")
    elif shown.by_loss:
        yield from _ranked_table(modules, shown)
    else:
        yield _ordered_table(modules, shown)
    left_out = [module for module in modules if not module.compared]
    if left_out and not shown.everything:  # --all has a row for each of them
        yield _not_compared(left_out)
        if verification.deployed:
            yield from _fused(left_out)


def _ordered_table(modules: Sequence[ModuleNumbers], shown: Shown) -> Table:
    modules_table = table("", "module", "calls", "max |Δ|", "SQNR dB", "cosine", "status", right=_NUMBERS)
    for row in in_order(modules, shown):
        if isinstance(row, Gap):
            counts = ", ".join(f"{count} {status.value}" for status, count in row.statuses.items())
            modules_table.add_row(Text(f"… {counts}", "dim"))
        else:
            max_abs, sqnr, cosine = _figures(row.outputs)
            modules_table.add_row(plain(row.path or "(model)"), _calls(row), max_abs, sqnr, cosine, _status(row))
    return modules_table


def _ranked_table(modules: Sequence[ModuleNumbers], shown: Shown) -> Iterator[RenderableType]:
    """What a module loses is what goes in better than it comes out, in decibels."""
    ranking = ranked(modules, shown)
    is_measured = any(row.losing_call.effect is not None for row in ranking.rows)  # of two files
    columns = ("module", "calls", "in dB", "out dB", "lost dB", *([_EFFECT] if is_measured else []))
    modules_table = table("", *columns, "max |Δ|", "cosine", "status", right=_NUMBERS)
    for row in ranking.rows:
        max_abs, _, cosine = _figures(row.outputs)
        loss = _loss(row) if is_measured else _loss(row)[:-1]
        modules_table.add_row(plain(row.path or "(model)"), _calls(row), *loss, max_abs, cosine, _status(row))
    yield modules_table if ranking.rows else Text("no module loses anything", "green")
    if any(row.losing_call.lost is None and row.compared for row in ranking.rows):
        yield Text("? no floats go in that could be compared: not ranked", "dim")
    left_out = []
    if ranking.less:
        lose = "loses" if ranking.less == 1 else "lose"
        left_out.append(f"{counted(ranking.less, 'module')} that {lose} less, or nothing")
    if ranking.around:
        lose = "loses" if ranking.around == 1 else "lose"
        left_out.append(f"{ranking.around} around others that {lose} no more than what is inside")
    if left_out:
        yield Text(f"not shown: {', '.join(left_out)} (--all)", "dim")


def _calls(row: ModuleNumbers) -> str:
    total = len(row.calls)
    return str(total) if row.compared in (0, total) else f"{row.compared} of {total}"


def _figures(difference: results.Difference | None) -> tuple[str, str, str]:
    if difference is None:
        return "", "", ""
    if difference.nothing_finite:
        return "", "", ""
    return difference_text(difference.max_abs), decibels_text(difference.sqnr), cosine_text(difference.cosine)


def _loss(row: ModuleNumbers) -> tuple[str, str, str, str]:
    """Of the call that is ranked first: the worst of several would not add up."""
    call = row.losing_call
    if call.outputs is None:
        return "", "", "", ""
    sqnr_in = "" if call.inputs is None else decibels_text(call.inputs.sqnr, 1)
    lost = "?" if call.lost is None else decibels_text(call.lost, 1)
    effect = "" if call.effect is None else f"{decibels_text(call.effect, 1)} dB"
    return sqnr_in, decibels_text(call.outputs.sqnr, 1), lost, effect


def _status(row: ModuleNumbers) -> Text:
    """Why it was not compared; else at which of several calls it goes wrong, and NaN where there is one."""
    text = row.status.value
    if row.status is results.Status.NOT_COMPARED:
        reason = _reason(row.worst_call)
        return plain(f"{text}: {reason}" if reason else text, _STYLES[row.status])
    if row.status is not results.Status.OK and len(row.calls) > 1:
        text = f"{text} at call #{row.worst_call.call.index}"
    if row.status is results.Status.OK and row.outputs is not None and row.outputs.too_small:
        return Text(TOO_SMALL, "yellow")
    if row.outputs is not None and row.outputs.nothing_finite:
        return Text(NOTHING_FINITE, "yellow")
    if row.outputs is not None and row.outputs.unlike:
        text = f"{text}, NaN or Inf in {counted(row.outputs.unlike, 'element')}"
    return Text(text, _STYLES[row.status])


def _reason(call: results.CallNumbers) -> str:
    return f"fused with {modules_text(call.fused_with)}" if call.fused_with else call.reason


def _fused(modules: Sequence[ModuleNumbers]) -> Iterator[Text]:
    """Who shares a node with whom; that is what was asked for, so some of it is shown without asking for all."""
    fused = [module.calls[0] for module in modules if module.calls[0].fused_with]
    for call in fused[:_LISTED_FUSIONS]:
        yield plain(f"  {modules_text([call.call])}: {_reason(call)}", "dim")
    yield from _more(len(fused) - len(fused[:_LISTED_FUSIONS]))


def _not_compared(modules: Sequence[ModuleNumbers]) -> Text:
    reasons = Counter(module.calls[0].reason or "no reason known" for module in modules)
    return plain(f"not compared: {counted(len(modules), 'module')} ({reasons_text(reasons)})", "dim")


def _outputs(outputs: Mapping[str, results.Difference]) -> Iterator[RenderableType]:
    """What a user of the file sees; modules may differ and outputs agree."""
    if not outputs:
        return
    yield Text()
    outputs_table = table("", "output", "max |Δ|", "SQNR dB", "cosine", "status", right=_NUMBERS)
    for name, difference in outputs.items():
        status = Text("ok", "green") if difference.agrees else Text("differs", "red")
        if difference.too_small:
            status = Text(TOO_SMALL, "yellow")
        if difference.nothing_finite:
            status = Text(NOTHING_FINITE, "yellow")
        outputs_table.add_row(plain(name), *_figures(difference), status)
    yield outputs_table


def _origins(verification: results.Verification) -> Iterator[RenderableType]:
    if verification.divergence is not None:
        yield from _divergence(verification.divergence)
    elif not verification.numbers_agree:
        no_module = "there is no module of which what goes in agrees and what comes out not"
        yield Text(f"the outputs differ, and {no_module}", "red")
    for origin in verification.not_finite:
        yield _not_finite(origin, verification)
    for message in verification.frozen:
        yield plain(message, "red")


def _sudden_losses(verification: results.Verification, shown: Shown) -> Iterator[RenderableType]:
    listed = verification.sudden_losses if shown.everything else verification.sudden_losses[:_LISTED_LOSSES]
    for loss in listed:
        module = modules_text([loss.call])
        line = Text().append("sudden loss: ", "bold yellow").append_text(plain(f"{module} ({loss.class_name})", "bold"))
        yield line.append(f"   in {decibels_text(loss.inputs.sqnr)} dB, out {decibels_text(loss.outputs.sqnr)} dB   ")
    yield from _more(len(verification.sudden_losses) - len(listed))
    if listed:
        path = verification.sudden_losses[0].call.path
        chosen = f" --left-module {shlex.quote(path)}" if path else ""
        other = verification.reference if verification.parameters is None else "NEW.onnx"
        compared = f"modelexport diff {shlex.quote(other)} {shlex.quote(verification.file)}{chosen}"
        made = "compare the files" if verification.parameters is None else "export the model anew and compare"
        said = "within the tolerance, and more than rounding explains, such as another epsilon"
        yield plain(f"  {said}; {made}: {compared}")


def _divergence(divergence: results.Divergence) -> Iterator[RenderableType]:
    calls = zip(divergence.calls, divergence.class_names, strict=True)
    modules = " + ".join(f"{modules_text([call])} ({name})" for call, name in calls)
    line = Text().append("first divergence: ", "bold red")
    line.append_text(plain(modules or "a node without a module", "bold"))
    line.append(f"   SQNR {decibels_text(divergence.outputs.sqnr)} dB   ")
    yield line.append(f"({_still(divergence.inputs)})", "dim")
    makes = f", which makes {divergence.node}" if divergence.name not in ("", divergence.node) else ""
    yield plain(f"  at node {divergence.name or divergence.node}{makes}{_shared(divergence)}")


def _shared(divergence: results.Divergence) -> str:
    if len(divergence.calls) < 2:
        return ""
    if divergence.inputs is None:
        return f"; any of the {len(divergence.calls)} may be the cause: what passes between them could not be compared"
    return f"; it does the work of all {len(divergence.calls)}"


def _still(inputs: results.Difference | None) -> str:
    """Inputs that agree say that the fault is made here."""
    if inputs is None:
        return "none of its inputs could be compared"
    return "inputs are equal" if inputs.equal else f"inputs still agree to {decibels_text(inputs.sqnr)} dB"


def _not_finite(origin: results.NotFinite, verification: results.Verification) -> Text:
    """NaN and Inf spread to everything after them: the node that has them first is the one to look at."""
    reference = verification.reference
    where = f"{origin.kind} comes up first in {modules_text(origin.calls) or 'no known module'}, at node {origin.node}"
    if origin.both:
        return plain(f"{where}; {reference} has it there too", "yellow")
    if verification.numbers_agree:
        return plain(f"{where}, and goes no further; {reference} does not have it there", "yellow")
    return plain(f"{where}; {reference} does not have it there", "red")
