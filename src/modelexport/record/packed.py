"""Provenance packed into one string, small enough to travel inside the ONNX file.

It is kept in *model-level* metadata, which survives optimizers that erase everything written on nodes. The document is
the one of `document.py` with everything that repeats or can be derived taken out: names become indices into tables,
rows become columns (which compress far better), tags are left to the policy. Then deflate, then base 85 because ONNX
metadata must be text.
"""

from __future__ import annotations

import base64
import json
import zlib

from modelexport.errors import RecordUnreadable
from modelexport.record.document import check_version, from_document, to_document
from modelexport.record.provenance import SCHEMA_VERSION, Provenance

_PREFIX = f"modelexport-record-{SCHEMA_VERSION}:"
# A record is a few bytes per node; a bomb is not.
_LARGEST = 1 << 30


def pack(provenance: Provenance) -> str:
    text = json.dumps(to_document(provenance), separators=(",", ":"), ensure_ascii=False)
    return _PREFIX + base64.b85encode(zlib.compress(text.encode(), 9)).decode("ascii")


def unpack(packed: str) -> Provenance:
    name, _, payload = packed.partition(":")
    if not name.startswith("modelexport-record-"):
        raise RecordUnreadable(f"the embedded record is not one: it starts with {packed[:24]!r}")
    version = name.rpartition("-")[2]
    check_version(int(version) if version.isdecimal() else None)
    try:
        inflater = zlib.decompressobj()
        text = inflater.decompress(base64.b85decode(payload), _LARGEST)
        document = json.loads(text)
    except (ValueError, zlib.error, KeyError, IndexError, TypeError, AttributeError) as error:
        raise RecordUnreadable(f"the embedded record is damaged: {error}") from error
    return from_document(document)
