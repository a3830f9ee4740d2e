"""An ONNX file on disk: weights, external data, metadata, atomic writing."""
