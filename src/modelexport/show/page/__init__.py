"""One HTML page about a file: data as columns, dataflow laid out, markup, style and scripts."""
