"""Chain check: the files of a package generate, beside the model, step by step.

    the chain     prefill, then decode steps; the cache goes from file to file as the package says   step_comparison.py
    the tokens    what `generate` makes of the chain's logits, beside what it makes of the model's
    the grid      12 sizes of one step: batch, past (none, and more than a window holds), query, padding

The model runs `generate` once, and its calls are what the files are run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from modelexport.api.chain_feeders import ChainFeeders
from modelexport.api.environment import Clock
from modelexport.api.options import ChainOptions, VerifyOptions
from modelexport.api.step_comparison import ComparedFile, StepComparer
from modelexport.errors import InputError, RuntimeFailed
from modelexport.record.results.package_verification import StepCheck, TokenCheck

if TYPE_CHECKING:
    import torch

    from modelexport.capture.entry_point import EntryPoint
    from modelexport.capture.generation.prepare import Components
    from modelexport.capture.generation.replay import EntryCall, StepSize
    from modelexport.capture.generation.steps import Generation
    from modelexport.capture.onnxruntime.chain import FileChain

# Tokens of the past and of the query that the grid is made of; one more past is longer than any window.
_PASTS, _QUERIES = (0, 1, 5), (1, 2, 7)
_LONG_PAST = 16
# Keys of configurations for the tokens that a decoder has positions for. Those that a family calls otherwise are in its
# `attribute_map`, which a configuration looks into by itself.
_CONTEXTS = ("max_target_positions", "max_position_embeddings", "max_seq_len")
_PADDINGS = ("", "left", "right")


@dataclass(frozen=True)
class ChainChecks:
    steps: tuple[StepCheck, ...]
    grid: tuple[StepCheck, ...]
    tokens: TokenCheck
    notes: tuple[str, ...] = ()


def verify_chain(
    files: FileChain,
    components: Components,
    compared: Mapping[str, ComparedFile],
    options: VerifyOptions,
    chain: ChainOptions,
    clock: Clock,
) -> ChainChecks:
    from modelexport.capture.generation.multimodal import record_as_taken
    from modelexport.capture.generation.replay import find_window, keep_text, limit_size
    from modelexport.capture.isolation import isolate_model
    from modelexport.capture.silence import quiet

    model, prompt = components.module, components.inputs
    context = _context(model)
    _ensure_context(model, prompt, chain.new_tokens)
    comparer = StepComparer(model, compared, options.tolerance)
    walk = _ChainWalk(files, comparer, compared, ChainFeeders(model, files.info, compared, prompt))
    later = compared[files.later].entry
    sizes, left_out = _grid_sizes(find_window(later), context) if chain.grid else ([], [])
    sizes = [limit_size(later, size) for size in sizes]
    with isolate_model(model), quiet():  # of `generate`, which warns of padding on the right
        with clock.step("generate"):
            run = record_as_taken(later)(model, prompt, max(chain.new_tokens, 2))
        with clock.step("chain"):
            steps = tuple(walk.steps(run, chain.new_tokens))
            tokens = _check_tokens(model, prompt, run, walk.logits, chain.new_tokens)
        with clock.step("grid"):
            grid = tuple(walk.grid(model, keep_text(model, prompt, run), sizes))
    return ChainChecks(steps, grid, tokens, (*_tell_left_out(left_out, context), *_tell_refused(walk.refused)))


class _ChainWalk:
    """Runs of the files of a package beside calls of the model.

    logits   of the files, step by step, as far as the chain went
    refused  sizes of the grid that operators of the runtime do not take, by what these say
    """

    def __init__(
        self,
        files: FileChain,
        comparer: StepComparer,
        compared: Mapping[str, ComparedFile],
        feeders: ChainFeeders,
    ) -> None:
        self.logits: list[np.ndarray] = []
        self.refused: dict[str, list[StepSize]] = {}
        self._files, self._comparer, self._compared, self._feeders = files, comparer, compared, feeders

    def steps(self, run: Generation, count: int) -> Iterator[StepCheck]:
        """Until one diverges: what comes behind it is fed with what is wrong."""
        from modelexport.capture.generation.replay import read_step

        self._files.restart()
        for number in range(count):
            entry = self._compared[self._files.next_component].entry
            arguments = run.calls[number].arguments
            feeding = self._feeders.read_calls(entry.name, None if number == 0 else arguments)
            for call in read_step(run, number, entry):
                checks, logits = self._step(number, entry, call, feeding, arguments)
                yield from checks
                if not all(check.ok for check in checks):
                    return
            self.logits.append(logits)

    def _step(
        self,
        number: int,
        entry: EntryPoint,
        call: EntryCall,
        feeding: Mapping[str, EntryCall],
        arguments: Mapping[str, Any],
    ) -> tuple[list[StepCheck], np.ndarray]:
        # What links and cache pairs hand on is not given: it goes from file to file as the package says.
        given = {name: self._feeders.take_given(name, feeder, feeding) for name, feeder in feeding.items()}
        given[entry.name] = self._feeders.take_given(entry.name, call, feeding, {pair.past for pair in entry.cache})
        try:
            runs = self._files.run_feeders(given)
            if number == 0:
                self._feeders.merge_media(self._files, runs, arguments)
            runs = (*runs, self._files.run_decoder(given))
        except RuntimeFailed as error:
            return [self._comparer.fail(number, entry.name, call, error)], np.empty(0)
        checks = [self._comparer.compare(number, run, feeding.get(run.component, call)) for run in runs]
        return checks, runs[-1].outputs.get("logits", np.empty(0))

    def grid(
        self, model: torch.nn.Module, prompt: Mapping[str, torch.Tensor], sizes: Sequence[StepSize]
    ) -> Iterator[StepCheck]:
        from modelexport.capture.generation.replay import read_sized_step, take_last_row

        first, later = (self._compared[name].entry for name in (self._files.first, self._files.later))
        for size in sizes:
            entry, calls = read_sized_step(model, prompt, (first, later), size)
            for call in calls:
                check = self._check_size(entry, call, size)
                if check is None and size.batch > 1:  # as many tokens may be taken in one row
                    check = self._check_size(entry, take_last_row(entry, call), replace(size, batch=1))
                if check is not None:
                    yield check
                if check is None or not check.outputs:
                    break

    def _check_size(self, entry: EntryPoint, call: EntryCall, size: StepSize) -> StepCheck | None:
        """One step of the grid; None if an operator of the runtime does not take it."""
        from modelexport.capture.arguments import to_array
        from modelexport.capture.onnxruntime.chain import ChainRun

        feed = {name: to_array(tensor) for name, tensor in call.inputs.items()}
        padding = size.padding if call.mask is not None and not bool(call.mask.all()) else ""
        try:
            outputs = self._files.run_file(entry.name, feed)
        except RuntimeFailed as error:
            refusal = self._files.find_refusal(entry.name, error)
            if not refusal:
                return self._comparer.fail(0, entry.name, call, error, padding)
            self.refused.setdefault(refusal, []).append(size)
            return None
        return self._comparer.compare(0, ChainRun(entry.name, feed, outputs, {}), call, padding=padding)


def _grid_sizes(window: int, context: int | None) -> tuple[list[StepSize], list[StepSize]]:
    """Every past with every query; batch and padding take turns. Then those that are longer than the context."""
    from modelexport.capture.generation.replay import StepSize

    long_past = window + (window + 1) // 2 if window else _LONG_PAST
    pairs = [(past, query) for past in (*_PASTS, long_past) for query in _QUERIES]
    sizes = [
        StepSize(1 + index % 3, past, query, _PADDINGS[(index + index // 3) % 3])
        for index, (past, query) in enumerate(pairs)
    ]
    fitting = [size for size in sizes if context is None or size.past + size.query < context]
    return fitting, [size for size in sizes if size not in fitting]


def _tell_left_out(sizes: Sequence[StepSize], context: int | None) -> Iterator[str]:
    if sizes:
        listed = ", ".join(f"{size.past} + {size.query}" for size in sizes)
        yield f"{len(sizes)} sizes of the grid (past + query: {listed}) are more than the model's context of {context}"


def _tell_refused(refused: Mapping[str, Sequence[StepSize]]) -> Iterator[str]:
    for reason, sizes in refused.items():
        listed = ", ".join(f"{size.batch} x ({size.past} + {size.query})" for size in sizes)
        yield f"{len(sizes)} sizes of the grid (batch x (past + query): {listed}) are refused by ONNX Runtime: {reason}"


def _check_tokens(
    model: torch.nn.Module,
    prompt: Mapping[str, torch.Tensor],
    run: Generation,
    logits: Sequence[np.ndarray],
    count: int,
) -> TokenCheck:
    import torch

    from modelexport.capture.generation.replay import choose_tokens

    new = run.tokens[:, -len(run.calls) :][:, :count]
    rows = len(new)
    chosen: list[list[int]] = [[] for _ in range(rows)]
    if logits:
        chosen = choose_tokens(model, prompt, run, [torch.from_numpy(array) for array in logits]).tolist()
    return TokenCheck(tuple(map(tuple, new.tolist())), tuple(map(tuple, chosen)))


def _ensure_context(model: torch.nn.Module, prompt: Mapping[str, torch.Tensor], new_tokens: int) -> None:
    from modelexport.capture.generation.steps import has_encoder

    context, tokens = _context(model), prompt.get("input_ids")
    length = tokens.shape[1] if tokens is not None and not has_encoder(model) else 0
    if context is not None and length + new_tokens > context:
        raise InputError(
            f"a prompt of {length} tokens and {new_tokens} new ones are more than the model's context of {context}",
            "Give a shorter prompt (--text, --input), or fewer --new-tokens.",
        )


def _context(model: torch.nn.Module) -> int | None:
    """Tokens that a model has positions for, as its configuration says."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    declared = (getattr(text, name, None) for name in _CONTEXTS)
    return next((context for context in declared if isinstance(context, int)), None)
