"""File chain: the files of a package, run one after the other in ONNX Runtime, as a consumer of the package does.

    step 0   encoder    input_features                          last_hidden_state
             decoder    input_ids 2x4, encoder_hidden_states    logits, present.*
    step 1   decoder_with_past   input_ids 2x1, past_key_values.* ◄── present.* of step 0

Links hand values from file to file, cache pairs from step to step. A state that nobody has made yet is empty: nothing
along the axes that no other input has, and what the cache pair says (zeros) where all sizes are fixed. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from modelexport.capture.onnxruntime.session import bind_inputs, open_session, required_inputs
from modelexport.errors import InputError, RuntimeFailed, UserError
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.types import input_dims
from modelexport.record.package import ComponentInfo, PackageInfo

MASK = "attention_mask"
# By component, what it is given from outside.
Given = Mapping[str, Mapping[str, np.ndarray]]


@dataclass(frozen=True)
class ChainRun:
    """One run of one file.

    handed  inputs that came from another file or from the step before, and from which output
    """

    component: str
    feed: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]
    handed: Mapping[str, str]


class FileChain:
    """The state of a package that generates.

    first  name of the component that the first step runs; later ones run `later`
    """

    def __init__(self, info: PackageInfo, files: Mapping[str, TaggedFile]) -> None:
        self._files = files
        self._info = info
        self._components = {component.name: component for component in info.components}
        self.first, self.later = find_decoders(info)
        self._sessions: dict[str, Any] = {}
        self.restart()

    def restart(self) -> None:
        """Forget everything: the next step is the first."""
        self._states: dict[str, tuple[str, np.ndarray]] = {}
        self._made: dict[tuple[str, str], np.ndarray] = {}
        self._steps = 0

    @property
    def next_component(self) -> str:
        return self.later if self._steps else self.first

    def step(self, given: Given) -> tuple[ChainRun, ...]:
        """One step: the decoder, after the files that feed it and have inputs of their own in this step."""
        return *self.run_feeders(given), self.run_decoder(given)

    def run_feeders(self, given: Given) -> tuple[ChainRun, ...]:
        """Files that feed the decoder of the next step, and those whose outputs a consumer itself hands on."""
        decoders, sources = {self.first, self.later}, {link.source for link in self._info.links}
        loose = [name for name in self._components if name not in sources | decoders and given.get(name)]
        feeders = dict.fromkeys((*loose, *self._feeders(self.next_component, given)))
        return tuple(self._run(feeder, given) for feeder in feeders)

    def run_decoder(self, given: Given) -> ChainRun:
        run = self._run(self.next_component, given)
        self._steps += 1
        return run

    def replace_output(self, component: str, output: str, array: np.ndarray) -> None:
        """What the consumer makes of an output before it hands it on: features in the place of embeddings."""
        self._made[component, output] = array

    def _feeders(self, target: str, given: Given) -> Iterator[str]:
        sources = dict.fromkeys(link.source for link in self._info.links if link.target == target)
        for source in sources:
            if source not in (self.first, self.later) and given.get(source):
                yield from self._feeders(source, given)
                yield source

    def _run(self, name: str, given: Given) -> ChainRun:
        feed, handed = self._feed(self._components[name], given.get(name, {}))
        outputs = self.run_file(name, feed)
        for output, array in outputs.items():
            self._made.pop((name, output), None)  # so that the last one made is the last one here
            self._made[name, output] = array
        for pair in self._components[self.later].cache:
            if pair.present in outputs:
                self._states[pair.past] = pair.present, outputs[pair.present]
        return ChainRun(name, feed, outputs, handed)

    def _feed(
        self, component: ComponentInfo, given: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], dict[str, str]]:
        arrays: dict[str, np.ndarray] = {}
        handed: dict[str, str] = {}
        links = self._find_made(component.name)
        states = {pair.past: pair.first for pair in component.cache}
        for name in component.inputs:
            if name in given:
                arrays[name] = given[name]
            elif name in states and name in self._states:
                handed[name], arrays[name] = self._states[name]
            elif name in links:
                handed[name], arrays[name] = ".".join(links[name]), self._made[links[name]]
        empty = {name: first for name, first in states.items() if name in component.inputs and name not in arrays}
        arrays |= empty_states(self._files[component.name].sized_proto, empty, arrays)
        missing = [name for name in component.inputs if name not in arrays]
        if missing:
            raise InputError(
                f"{component.name} takes {missing[0]!r}, which no file makes and nobody gives",
                "Look at the links and cache pairs: `modelexport validate PACKAGE`.",
            )
        return bind_inputs(self._files[component.name].proto, arrays), handed

    def _find_made(self, target: str) -> dict[str, tuple[str, str]]:
        """Outputs that feed inputs of a component; of several, the one that was made last."""
        inputs: dict[tuple[str, str], list[str]] = {}
        for link in self._info.links:
            if link.target == target:
                inputs.setdefault((link.source, link.output), []).append(link.input)
        return {name: made for made in self._made for name in inputs.get(made, ())}

    def run_file(self, name: str, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """One file on these inputs, as ONNX Runtime optimizes it."""
        file = self._files[name]
        try:
            if name not in self._sessions:
                self._sessions[name] = open_session(file.path)
            session = self._sessions[name]
            wanted = {value.name for value in session.get_inputs()}
            arrays = session.run(None, {key: array for key, array in feed.items() if key in wanted})
        except Exception as error:
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise RuntimeFailed(
                f"ONNX Runtime cannot run {file.path}: {said[:300]}", "Check the package: `modelexport validate`."
            ) from error
        return dict(zip((value.name for value in session.get_outputs()), arrays, strict=True))


def find_decoders(info: PackageInfo) -> tuple[str, str]:
    """The components of the first step and of later ones; the same where one does both."""
    later = next((component for component in info.components if component.cache), None)
    if later is None:
        raise UserError(
            "no file of the package has a cache: it does not generate", "Verify or profile its files one by one."
        )
    presents = {pair.present for pair in later.cache}
    others = (component for component in info.components if component is not later)
    first = next((component for component in others if presents <= set(component.outputs)), later)
    return first.name, later.name


def empty_states(
    proto: onnx.ModelProto, firsts: Mapping[str, float], given: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """States before the first token, from the shapes that the file states for them, filled with `firsts`."""
    wanted = required_inputs(proto)
    known: dict[str, int] = {}
    for name, array in given.items():
        for dim, size in zip(input_dims(wanted[name]) or (), array.shape, strict=False):
            if isinstance(dim, str):
                known.setdefault(dim, size)
    states = {}
    for name, first in firsts.items():
        kind = wanted[name].type.tensor_type.elem_type
        shape = [dim if isinstance(dim, int) else known.get(dim, 0) for dim in input_dims(wanted[name]) or ()]
        states[name] = np.full(shape, first, onnx.helper.tensor_dtype_to_np_dtype(kind))
    return states


def takes_one_token(proto: onnx.ModelProto, name: str) -> bool:
    """Whether a file takes the tokens of this input one by one: the axis behind the batch is fixed at 1."""
    value = required_inputs(proto).get(name)
    dims = None if value is None else input_dims(value)
    return dims is not None and len(dims) > 1 and dims[1] == 1
