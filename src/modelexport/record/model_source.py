"""Model source: the model and its inputs, as a user names them.

`export`, `attach`, `verify`, `extract` and `compare_strategies` take the same dozen keywords, and so do their commands.
Inside of the package they travel as one value, from the public function down to the loader:

    ModelSource("bert-base-uncased", text="Hello", seed=1)
    ModelSource(net, inputs={"x": x})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelSource:
    """
    model   a live `nn.Module`, a folder, a hub id, or `package.module:callable`; None to run a file without its model
    inputs  keyword inputs, a tensor or a tuple of them, the path of an .npz file, or a list of these: several samples
    dtype   `auto` keeps that of the checkpoint; None is float32, or the type of the file that the model is loaded for.
            What Python code built (a live module, a callable) keeps its own unless a type is named
    input   shapes as the command line takes them: `x=2x3:float32`
    static  inputs are for a graph without dynamic axes
    file_dtype  the type of the file that the model is loaded for, if there is one: of the weights of a checkpoint where
                `dtype` is None, and of floats that it is given
    weights  False: only the structure of a checkpoint or a configuration is loaded, without a number of its weights
    """

    model: torch.nn.Module | str | Path | None = None
    inputs: object = None
    task: str | None = None
    dtype: str | None = None
    device: str = "cpu"
    seed: int = 0
    trust_remote_code: bool = False
    allow_pickle: bool = False
    text: str | None = None
    image: str | Path | None = None
    input: Sequence[str] = ()
    input_specs: str | Path | None = None
    static: bool = False
    revision: str | None = None
    file_dtype: str | None = None
    weights: bool = True

    @property
    def describes_inputs(self) -> bool:
        """Whether something is said of the inputs, short of giving them."""
        return bool(self.input or self.input_specs or self.text or self.image)

    def with_module(self, module: torch.nn.Module) -> ModelSource:
        """The same source, loaded: it is converted no more, and what it is given is still to be in its type."""
        return replace(self, model=module, dtype=None, file_dtype=self.dtype or self.file_dtype)

    @property
    def leaves_inputs_open(self) -> bool:
        return self.inputs is None and not self.describes_inputs

    @property
    def input_files(self) -> tuple[Path, ...]:
        given = self.inputs if isinstance(self.inputs, list | tuple) else [self.inputs]
        return tuple(map(Path, given)) if given and all(isinstance(item, str | Path) for item in given) else ()

    @property
    def samples(self) -> tuple[object, ...]:
        """The inputs of each run: one, or several if they are files or a list of dictionaries."""
        # Files first: a tuple of paths would also pass for a tuple of positional inputs.
        if self.input_files:
            return self.input_files
        if isinstance(self.inputs, list) and self.inputs and all(isinstance(item, Mapping) for item in self.inputs):
            return tuple(self.inputs)
        return (self.inputs,)
