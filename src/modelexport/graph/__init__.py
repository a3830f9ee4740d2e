"""Reading, checking and writing ONNX files, without their weights passing through memory."""
