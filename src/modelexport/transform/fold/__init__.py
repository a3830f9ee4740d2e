"""Fold: repeated modules as ONNX functions, and back, byte for byte. The story is in `fold.py`."""
