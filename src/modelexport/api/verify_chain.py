"""Chain check: the files of a package generate, beside the model, step by step.

    the chain     prefill, then decode steps; the cache goes from file to file as the package says   step_comparison.py
    the tokens    what `generate` makes of the chain's logits, beside what it makes of the model's
    the grid      12 sizes of one step: batch, past (none, and more than a window holds), query, padding

The model runs `generate` once, and its calls are what the files are run on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from modelexport.api.environment import Clock
from modelexport.api.options import ChainOptions, VerifyOptions
from modelexport.api.package import Package
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
_PADDINGS = ("", "left", "right")


@dataclass(frozen=True)
class ChainChecks:
    steps: tuple[StepCheck, ...]
    grid: tuple[StepCheck, ...]
    tokens: TokenCheck


def verify_chain(
    package: Package,
    components: Components,
    compared: Mapping[str, ComparedFile],
    options: VerifyOptions,
    chain: ChainOptions,
    clock: Clock,
) -> ChainChecks:
    from modelexport.capture.generation.steps import record_steps
    from modelexport.capture.isolation import isolate_model, quiet
    from modelexport.capture.onnxruntime.chain import FileChain

    model, prompt = components.module, components.inputs
    _ensure_context(model, prompt, chain.new_tokens)
    files = FileChain(package.info, {name: component.file for name, component in package.components.items()})
    comparer = StepComparer(model, compared, options.tolerance)
    walk = _ChainWalk(files, comparer, compared, prompt)
    with isolate_model(model), quiet():  # of `generate`, which warns of padding on the right
        with clock.step("generate"):
            run = record_steps(model, prompt, max(chain.new_tokens, 2))
        with clock.step("chain"):
            steps = tuple(walk.steps(run, chain.new_tokens))
            tokens = _check_tokens(model, prompt, run, walk.logits, chain.new_tokens)
        with clock.step("grid"):
            grid = tuple(walk.grid(model)) if chain.grid else ()
    return ChainChecks(steps, grid, tokens)


class _ChainWalk:
    """Runs of the files of a package beside calls of the model.

    logits  of the files, step by step, as far as the chain went
    """

    def __init__(
        self,
        files: FileChain,
        comparer: StepComparer,
        compared: Mapping[str, ComparedFile],
        prompt: Mapping[str, torch.Tensor],
    ) -> None:
        self.logits: list[np.ndarray] = []
        self._files, self._comparer, self._compared, self._prompt = files, comparer, compared, prompt

    def steps(self, run: Generation, count: int) -> Iterator[StepCheck]:
        """Until one diverges: what comes behind it is fed with what is wrong."""
        from modelexport.capture.generation.replay import read_step

        self._files.restart()
        for number in range(count):
            entry = self._compared[self._files.next_component].entry
            for call in read_step(run, number, entry):
                checks, logits = self._step(number, entry, call)
                yield from checks
                if not all(check.ok for check in checks):
                    return
            self.logits.append(logits)

    def _step(self, number: int, entry: EntryPoint, call: EntryCall) -> tuple[list[StepCheck], np.ndarray]:
        from modelexport.capture.arguments import to_array

        arrays = {name: to_array(tensor) for name, tensor in call.inputs.items()}
        feeding = {} if number else dict(self._feeding_calls(entry.name))
        given = {entry.name: arrays} | {
            name: {key: to_array(tensor) for key, tensor in feeder.inputs.items()} for name, feeder in feeding.items()
        }
        # The cache is not given: it goes from step to step as the package says.
        states = {pair.past for pair in entry.cache}
        given[entry.name] = {name: array for name, array in arrays.items() if name not in states}
        try:
            runs = self._files.step(given)
        except RuntimeFailed as error:
            return [self._comparer.fail(number, entry.name, call, error)], np.empty(0)
        checks = [self._comparer.compare(number, run, feeding.get(run.component, call)) for run in runs]
        return checks, runs[-1].outputs.get("logits", np.empty(0))

    def _feeding_calls(self, decoder: str) -> Iterator[tuple[str, EntryCall]]:
        """Components that are run on what `generate` itself was given."""
        from modelexport.capture.generation.replay import EntryCall

        for name, item in self._compared.items():
            inputs = {key: self._prompt[key] for key in item.entry.inputs if key in self._prompt}
            if name != decoder and inputs.keys() == item.entry.inputs.keys():
                yield name, EntryCall(inputs, 0, 0)

    def grid(self, model: torch.nn.Module) -> Iterator[StepCheck]:
        from modelexport.capture.arguments import to_array
        from modelexport.capture.generation.replay import find_window, read_sized_step
        from modelexport.capture.onnxruntime.chain import ChainRun

        first, later = (self._compared[name].entry for name in (self._files.first, self._files.later))
        for size in _grid_sizes(find_window(later), _context(model)):
            entry, calls = read_sized_step(model, self._prompt, (first, later), size)
            for call in calls:
                feed = {name: to_array(tensor) for name, tensor in call.inputs.items()}
                padding = size.padding if call.mask is not None and not bool(call.mask.all()) else ""
                try:
                    outputs = self._files.run_file(entry.name, feed)
                except RuntimeFailed as error:
                    yield self._comparer.fail(0, entry.name, call, error, padding)
                    break
                run = ChainRun(entry.name, feed, outputs, {})
                yield self._comparer.compare(0, run, call, padding=padding)


def _grid_sizes(window: int, context: int | None) -> list[StepSize]:
    """Every past with every query; batch and padding take turns."""
    from modelexport.capture.generation.replay import StepSize

    long_past = window + (window + 1) // 2 if window else _LONG_PAST
    pairs = [(past, query) for past in (*_PASTS, long_past) for query in _QUERIES]
    fitting = [(past, query) for past, query in pairs if context is None or past + query < context]
    return [
        StepSize(1 + index % 3, past, query, _PADDINGS[(index + index // 3) % 3])
        for index, (past, query) in enumerate(fitting)
    ]


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
    context, tokens = _context(model), prompt.get("input_ids")
    is_prompt = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    length = tokens.shape[1] if tokens is not None and is_prompt else 0
    if context is not None and length + new_tokens > context:
        raise InputError(
            f"a prompt of {length} tokens and {new_tokens} new ones are more than the model's context of {context}",
            "Give a shorter prompt (--text, --input), or fewer --new-tokens.",
        )


def _context(model: torch.nn.Module) -> int | None:
    """Tokens that a model has positions for, as its configuration says."""
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    context = getattr(text, "max_position_embeddings", None)
    return context if isinstance(context, int) else None
