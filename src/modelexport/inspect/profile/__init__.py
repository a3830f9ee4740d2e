"""ONNX Runtime's profile, joined with nodes and summed up by module."""
