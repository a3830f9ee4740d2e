"""Everything that runs something: torch, the exporters, ONNX Runtime, and the inputs for them."""
