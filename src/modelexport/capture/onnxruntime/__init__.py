"""Graphs run by ONNX Runtime: sessions, pieces of a graph, inputs, calibration."""
