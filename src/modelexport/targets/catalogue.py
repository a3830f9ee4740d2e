"""Catalogue of targets: the consumers that a package can be laid out for.

To add one: write its contract in a file of its own and list it here.
"""

from __future__ import annotations

from modelexport.errors import UnknownName
from modelexport.targets.contract import Contract
from modelexport.targets.genai import GENAI
from modelexport.targets.optimum import OPTIMUM, PLAIN
from modelexport.targets.transformersjs import TRANSFORMERSJS

_CONTRACTS = {contract.name: contract for contract in (GENAI, OPTIMUM, TRANSFORMERSJS)}
TARGETS = tuple(_CONTRACTS)


def find_contract(name: str) -> Contract:
    """The contract of a consumer by its name; an empty name is for a package without consumer."""
    if not name:
        return PLAIN
    if name not in _CONTRACTS:
        raise UnknownName("target", name, TARGETS)
    return _CONTRACTS[name]
