"""Feeders of a decoder: the components of a package that run before it in a step, beside the same calls of the model.

    first step        vision_encoder ─► embedding ─► decoder    the prompt, with what it holds besides text
    later steps       embed_tokens ─► decoder                   one token; else `embedding`, without media
    no `embedding`    vision_encoder, embed_tokens ─► decoder   a consumer puts features in the place of tokens

Of several components that make one input, the one that takes most is run on the prompt, and the one that takes least
later on: tokens have no media with them any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import numpy as np

from modelexport.api.step_comparison import ComparedFile
from modelexport.record.package import ComponentLink, PackageInfo

if TYPE_CHECKING:
    import torch

    from modelexport.capture.generation.replay import EntryCall
    from modelexport.capture.onnxruntime.chain import ChainRun, FileChain


class ChainFeeders:
    """What feeds the decoders of a package while it generates from `prompt`."""

    def __init__(
        self,
        model: torch.nn.Module,
        info: PackageInfo,
        compared: Mapping[str, ComparedFile],
        prompt: Mapping[str, torch.Tensor],
    ) -> None:
        self._model, self._links, self._compared, self._prompt = model, info.links, compared, prompt
        states = {pair.present for component in info.components for pair in component.cache}
        self._decoders = {component.name for component in info.components if states & set(component.outputs)}
        self._made: dict[tuple[str, str], torch.Tensor] = {}

    def read_calls(self, decoder: str, arguments: Mapping[str, Any] | None) -> dict[str, EntryCall]:
        """Calls of the model for the components that run before this decoder, in an order that links allow.

        arguments  of the model's call; None for the first one, which is made of the prompt
        """
        from modelexport.capture.generation.replay import EntryCall, call_entry

        calls: dict[str, EntryCall] = {}
        for name in self._choose(decoder, most=arguments is None):
            inputs = self._find_inputs(name, self._prompt if arguments is None else arguments, arguments is not None)
            entry = self._compared[name].entry
            if inputs.keys() != entry.inputs.keys():
                continue
            calls[name] = EntryCall(inputs, 0, 0)
            if arguments is None:
                self._made |= {(name, output): tensor for output, tensor in call_entry(entry, inputs).items()}
        return calls

    def take_given(
        self, name: str, call: EntryCall, feeding: Mapping[str, EntryCall], states: AbstractSet[str] = frozenset()
    ) -> dict[str, np.ndarray]:
        """Inputs that nobody hands on. What the consumer leaves empty, because nothing makes it any more, is given."""
        from modelexport.capture.arguments import to_array

        made = {link.input for link in self._links if link.target == name and self._hands_on(link, name, feeding)}
        return {key: to_array(tensor) for key, tensor in call.inputs.items() if key not in states | made}

    def _hands_on(self, link: ComponentLink, name: str, feeding: Mapping[str, EntryCall]) -> bool:
        return link.source in feeding or (name in self._decoders and (link.source, link.output) in self._made)

    def _choose(self, decoder: str, most: bool) -> Iterator[str]:
        """Components that feed a decoder, and what feeds these; and on the prompt, those that nothing is linked to."""
        linked = {link.source for link in self._links}
        loose = [name for name in self._compared if name not in linked | self._decoders]
        yield from dict.fromkeys((*(loose if most else ()), *self._sources(decoder, most)))

    def _sources(self, target: str, most: bool) -> Iterator[str]:
        sources: dict[str, list[str]] = {}
        for link in self._links:
            if link.target == target and link.source not in self._decoders:
                sources.setdefault(link.input, []).append(link.source)
        for names in sources.values():
            chosen = (max if most else min)(names, key=lambda name: len(self._compared[name].entry.inputs))
            yield from self._sources(chosen, most)
            yield chosen

    def _find_inputs(self, name: str, arguments: Mapping[str, Any], is_later: bool) -> dict[str, torch.Tensor]:
        import torch

        links = {link.input: (link.source, link.output) for link in self._links if link.target == name}
        inputs = {}
        for key in self._compared[name].entry.inputs:
            if links.get(key) in self._made:
                made = self._made[links[key]]
                inputs[key] = made[:0] if is_later else made  # media are in the place of tokens of the prompt alone
            elif isinstance(arguments.get(key), torch.Tensor):
                inputs[key] = arguments[key]
        return inputs

    def merge_media(self, files: FileChain, runs: Sequence[ChainRun], arguments: Mapping[str, Any]) -> None:
        """Features in the place of embeddings, where no file does it: as the consumer of such a package does.

        Which tokens they stand for is read from the model's own call, what they are from the files.
        """
        from modelexport.capture.generation.multimodal import EMBEDDINGS, TOKENS, find_media_places

        linked = {link.source for link in self._links}
        features = [array for run in runs if run.component not in linked for array in run.outputs.values()]
        embedded = [run.component for run in runs if run.component in linked and EMBEDDINGS in run.outputs]
        if not features or not embedded or EMBEDDINGS not in arguments:
            return
        tokens = arguments[TOKENS].numpy(force=True)
        places = find_media_places(self._model, arguments).numpy(force=True)
        merged = next(run.outputs[EMBEDDINGS] for run in runs if run.component == embedded[-1]).copy()
        marks = list(dict.fromkeys(tokens[places].tolist()))
        for array in features:
            rows = array.reshape(-1, array.shape[-1])
            mark = next((mark for mark in marks if (places & (tokens == mark)).sum() == len(rows)), None)
            if mark is not None:
                marks.remove(mark)
                merged[places & (tokens == mark)] = rows
        files.replace_output(embedded[-1], EMBEDDINGS, merged)
