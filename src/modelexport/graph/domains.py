"""The domain of ONNX's own operators, which has two names."""

from __future__ import annotations

ONNX_DOMAINS = frozenset(("", "ai.onnx"))


def plain_domain(domain: str) -> str:
    return "" if domain in ONNX_DOMAINS else domain
