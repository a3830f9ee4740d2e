"""Inputs a model can be run with: made from its forward signature and configuration, or given by the user.

Everything is decided by *input name* and *configuration field*; the type of the model is never asked.
"""

from __future__ import annotations

from modelexport.capture.inputs.axes import dynamic_axes
from modelexport.capture.inputs.make import make_inputs
from modelexport.capture.inputs.request import InputRequest, InputSpec, ModelInputs
from modelexport.capture.inputs.spec import parse_input_spec

__all__ = ["InputRequest", "InputSpec", "ModelInputs", "dynamic_axes", "make_inputs", "parse_input_spec"]
