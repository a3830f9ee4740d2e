"""New files from a file: extract a part, fold modules into functions, run tools, select nodes for tools."""
