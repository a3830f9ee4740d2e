"""Rewriting what nodes say about themselves from the record."""

from __future__ import annotations

from modelexport.graph.embed import EmbedOptions, Level, embed, read_node_keys, write_node_keys
from modelexport.graph.index import walk_nodes
from modelexport.graph.model_file import ModelFile
from modelexport.record.provenance import Provenance


def repair_keys(model: ModelFile, record: Provenance, fitted: Provenance) -> int:
    """Give every node the keys that the record has for it, in place; how many nodes had others.

    The record goes back as it was stored: a graph that was changed since must not look like its own.
    """
    before = _keys(model)
    embed(model.proto, record, EmbedOptions(Level.LEAN))
    write_node_keys(model.proto, fitted)
    after = _keys(model)
    return sum(before[key] != after[key] for key in before)


def _keys(model: ModelFile) -> dict[str, dict[str, str]]:
    return {key: read_node_keys(node) for key, node in walk_nodes(model.proto)}
