"""One ONNX file and its index: reading, writing, types, operators, functions."""
