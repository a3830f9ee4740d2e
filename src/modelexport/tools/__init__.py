"""Tools that people run on ONNX files, each called the way that its own documentation says."""
