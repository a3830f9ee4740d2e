"""Entry points of a model that generates: which ONNX files it takes, each with a sample of its inputs.

    a decoder                 decoder
    an encoder and a decoder  encoder, decoder, decoder_with_past
                              one decoder for all calls: encoder, decoder_merged; or encoder, decoder
    vision and language       vision_encoder, embed_tokens, embedding, decoder
                              another first call: also decoder_with_past

The model is asked by its public methods; its architecture is not.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from modelexport.capture.entry_point import EntryPoint
from modelexport.capture.generation.decoders import find_decoder
from modelexport.capture.generation.encoder_decoders import find_encoder_decoder
from modelexport.capture.generation.media import find_media
from modelexport.capture.generation.multimodal import find_multimodal
from modelexport.capture.generation.steps import has_encoder


def find_entry_points(
    model: torch.nn.Module, inputs: Mapping[str, torch.Tensor], merged: bool = False, encodes_keys: bool = False
) -> tuple[EntryPoint, ...]:
    """`inputs` are those of `generate`: a batch of at least two, tokens padded on the left.

    merged        whether one decoder serves all calls of an encoder-decoder, the first included
    encodes_keys  whether it gets keys and values of the encoder's states from the encoder
    """
    # First, because a speech recognizer has media as well, and its decoder never sees them.
    if has_encoder(model):
        return find_encoder_decoder(model, inputs, merged, encodes_keys)
    if find_media(model, inputs):
        return find_multimodal(model, inputs)
    return find_decoder(model, inputs)
