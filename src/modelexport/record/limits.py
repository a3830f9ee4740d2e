"""Limits: how far a file may unfold before it is refused. Files come from strangers, and a small one can be a bomb.

Each limit is meant to be far above what models have and far below what takes gigabytes.
"""

from __future__ import annotations

# Functions of a file -----------------------------------------------------------------------------------------------

# Nodes of a file with its functions in the place of their calls. Functions that call
# each other twice reach it with 1 KB.
INLINED_NODES = 200_000
# Characters of the names that their values get, which the names of the calls around go before.
INLINED_CHARACTERS = 1 << 27
# Functions that call functions. Exporters write one for each level of modules. ONNX's own shape inference stops at 100.
CALL_DEPTH = 100

# Records -----------------------------------------------------------------------------------------------------------

# Bytes of JSON in a packed record.
RECORD_BYTES = 1 << 25
# Modules inside of modules, and calls inside of calls. Path, tag and stack of a module grow with its depth.
MODULE_DEPTH = 400
# Characters of all module paths, each with the paths above it, and of tags.
PATH_CHARACTERS = 1 << 25
# Modules, as many as two models of the largest size that is exported (`capture/loading/size_limits.py`): DeepSeek-V3
# has 62,000. Each takes 0.06 ms in tables, which is 8 s for a small file that claims to have so many.
MODULES = 125_000
# Names of their tensors, with those of tied ones, below every path of their module: DeepSeek-V3 has 92,000. `compare`
# takes 14 microseconds and 0.8 KB for each.
TENSORS = 400_000
# Characters of what it says of modules, written out for each: a packed record has what is alike once.
MODULE_CHARACTERS = 1 << 27
# Calls in all call stacks, and levels of all owners.
STACKED_CALLS = 5_000_000
# Characters of what a record says of its nodes one by one: owners, tag and evidence, written out for each.
NODE_CHARACTERS = 1 << 27

# What is said ------------------------------------------------------------------------------------------------------

# Of a line about an error: what is longer is cut in the middle, where names are.
MESSAGE_CHARACTERS = 500
# Of a name in a table. Ten lines of a wide terminal: tags are folded and not cut, because a tag that is cut off
# cannot be copied. JSON has all of it.
NAME_CHARACTERS = 2_000

# Checks of others --------------------------------------------------------------------------------------------------

# Numbers of shapes that ONNX's shape inference carries along.
PROPAGATED_NUMBERS = 1 << 22
# Up to so many of them, and so many nodes of functions that are called, its checker and shape inference run at once;
# above, in a process of its own, with these limits.
UNGUARDED_NUMBERS = 1 << 18
UNGUARDED_NODES = 50_000
CHECK_SECONDS = 30
CHECK_BYTES = 2 << 30
