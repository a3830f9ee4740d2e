"""Makes modules into ONNX functions, and functions into what they were."""
