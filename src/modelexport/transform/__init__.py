"""New files from a file: extract, fold, tools, quantize, select."""
