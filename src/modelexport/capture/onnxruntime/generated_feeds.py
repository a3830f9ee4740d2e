"""Generated feeds: inputs of the files of a package that generates, made by running the files themselves.

    feeds = GeneratedFeeds(info, files)
    feeds.run_prompt(batch=1, tokens=512)     decoder: input_ids 1x512, attention_mask 1x512, past_key_values.* empty
    feeds.run_step(batch=1)                   decoder: input_ids 1x1, attention_mask 1x513, past_key_values.* of 512

Tokens are random, within the table that they index; whatever a cache holds is what the file made of them. No torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from modelexport.capture.onnxruntime.chain import MASK, FileChain, takes_one_token
from modelexport.capture.onnxruntime.inputs import SampleRequest, make_feed, sample_feeds
from modelexport.capture.onnxruntime.session import required_inputs
from modelexport.errors import InputError, RuntimeFailed
from modelexport.graph.file.tagged_file import TaggedFile
from modelexport.graph.types import input_dims
from modelexport.record.package import CachePair, ComponentInfo, PackageInfo

# Inputs of `generate` and `forward` in transformers, which consumers of packages give under these names.
TOKENS, POSITIONS = "input_ids", "position_ids"
# Of tensors of the cache, as optimum and onnxruntime-genai call them.
PAST, PRESENT = "past_key_values.", "present."
_BATCH, _TOKENS = 2, 8
_ALONE = "decoder"  # what a file is called that is a package by itself


class GeneratedFeeds:
    """Runs a package on made-up tokens, and keeps what its files were fed.

    query  tokens that a decoder takes in one run of a prompt: all, or 1
    """

    def __init__(self, info: PackageInfo, files: Mapping[str, TaggedFile], seed: int = 0) -> None:
        self._info, self._files, self._seed = info, files, seed
        self._chain = FileChain(info, files)
        self._seen, self._prompt, self.query = 0, 0, 0
        self._components = {component.name: component for component in info.components}

    def run_prompt(self, batch: int, tokens: int) -> dict[str, dict[str, np.ndarray]]:
        """Run a prompt; what each component was fed, the last time that it ran."""
        self._chain.restart()
        self._seen, self._prompt = 0, tokens
        feeds: dict[str, dict[str, np.ndarray]] = {}
        first = self._files[self._chain.first].proto
        pieces = [1] * tokens if takes_one_token(first, TOKENS) else [tokens]
        self.query = pieces[-1]
        for size in pieces:
            feeds |= self.run_step(batch, size)
        return feeds

    def run_step(self, batch: int, tokens: int = 1) -> dict[str, dict[str, np.ndarray]]:
        """Run one more step behind those before; what each component was fed."""
        given = {name: self._make(name, batch, tokens) for name in self._info_names}
        runs = self._chain.step(given)
        self._seen += tokens
        return {run.component: dict(run.feed) for run in runs}

    @property
    def components(self) -> tuple[str, str]:
        """Those of the first step and of later ones."""
        return self._chain.first, self._chain.later

    @property
    def _info_names(self) -> list[str]:
        """Decoders, and in the first step what feeds them; later on, only what makes embeddings of tokens for them."""
        if not self._seen:
            return list(self._components)
        decoder = self._chain.next_component
        if TOKENS in self._components[decoder].inputs:
            return [decoder]
        sources = [link.source for link in self._info.links if link.target == decoder]
        embedding = [name for name in sources if TOKENS in self._components[name].inputs]
        return [*sorted(embedding, key=lambda name: len(self._components[name].inputs))[:1], decoder]

    def _make(self, name: str, batch: int, tokens: int) -> dict[str, np.ndarray]:
        file = self._files[name]
        is_decoder = name in self.components
        states = {pair.past for pair in self._components[name].cache}
        running = self._info_names if self._seen else ()
        linked = {link.input for link in self._info.links if link.target == name} - states
        renewed = {link.input for link in self._info.links if link.target == name and link.source in running}
        shapes = self._shapes(file, batch, tokens, self._seen if is_decoder else 0)
        lengths = {key: tokens if key in renewed else self._prompt for key in linked}
        shapes |= {key: _linked_shape(file, key, batch, length) for key, length in lengths.items()}
        feed = make_feed(file.sized_proto, file.graph, seed=self._seed + self._seen, shapes=shapes)
        if POSITIONS in feed:
            positions = np.arange(self._seen, self._seen + tokens)
            feed[POSITIONS] = np.broadcast_to(positions, feed[POSITIONS].shape).astype(feed[POSITIONS].dtype)
        return {key: array for key, array in feed.items() if key not in states | linked}

    def _shapes(self, file: TaggedFile, batch: int, tokens: int, past: int) -> dict[str, tuple[int, ...]]:
        """Of tokens and of their mask; inputs that share their axes follow."""
        wanted = required_inputs(file.sized_proto)
        dims = {name: input_dims(wanted[name]) for name in (TOKENS, MASK) if name in wanted}
        shapes: dict[str, tuple[int, ...]] = {}
        if dims.get(TOKENS) is not None:
            shapes[TOKENS] = (batch, tokens)
        if dims.get(MASK) is not None and dims.get(MASK) != dims.get(TOKENS):
            shapes[MASK] = (batch, past + tokens)
        return shapes


def _linked_shape(file: TaggedFile, name: str, batch: int, length: int) -> tuple[int, ...]:
    """Of what another file hands on: as long as what it was made of, so that a mask of it is made as long."""
    dims = input_dims(required_inputs(file.sized_proto)[name]) or ()
    return tuple(dim if isinstance(dim, int) else length if axis else batch for axis, dim in enumerate(dims))


def sample_steps(file: TaggedFile, request: SampleRequest) -> Iterator[dict[str, np.ndarray]]:
    """Inputs of one file. A cache is what the file itself made of the steps before; see `sample_feeds` for others.

    Given inputs and shapes are taken as they are.
    """
    pairs = find_cache_pairs(file) if not request.files and not request.shapes else ()
    steps: list[dict[str, np.ndarray]] = []
    if pairs:
        ends = tuple(required_inputs(file.proto)), tuple(file.graph.outputs)
        info = PackageInfo((ComponentInfo(_ALONE, file.path.name, *ends, pairs),))
        steps = make_steps(info, {_ALONE: file}, request.count, request.seed).get(_ALONE, [])
    yield from steps or sample_feeds(file.sized_proto, file.graph, request)


def find_cache_pairs(file: TaggedFile) -> tuple[CachePair, ...]:
    """Inputs and outputs that consumers hand on from step to step, by the names that they know: `present.0.key`."""
    inputs = required_inputs(file.proto)
    pairs = ((name.replace(PRESENT, PAST, 1), name) for name in file.graph.outputs if name.startswith(PRESENT))
    return tuple(CachePair(past, present) for past, present in pairs if past in inputs)


def make_steps(
    info: PackageInfo, files: Mapping[str, TaggedFile], count: int, seed: int = 0
) -> dict[str, list[dict[str, np.ndarray]]]:
    """What each component is fed in so many steps of generation, by component; nothing for files that do not run so.

    Files may take what only a whole chain has: then there is no step to take the inputs from.
    """
    feeds = GeneratedFeeds(info, files, seed)
    steps: dict[str, list[dict[str, np.ndarray]]] = {}
    # At least a prompt and a step: ranges of a cache that is empty, or never read, would be no ranges.
    try:
        fed = [feeds.run_prompt(_BATCH, _TOKENS), *(feeds.run_step(_BATCH) for _ in range(max(count, 2) - 1))]
    except (InputError, RuntimeFailed):
        return {}
    for step in fed:
        for component, feed in step.items():
            steps.setdefault(component, []).append(feed)
    return steps


def make_feeds(
    info: PackageInfo, files: Mapping[str, TaggedFile], *, batch: int = _BATCH, tokens: int = _TOKENS, seed: int = 0
) -> dict[str, dict[str, np.ndarray]]:
    """What each component is fed in a prefill and the step behind it, by component."""
    feeds = GeneratedFeeds(info, files, seed)
    fed = feeds.run_prompt(batch, tokens)
    return fed | feeds.run_step(batch)
