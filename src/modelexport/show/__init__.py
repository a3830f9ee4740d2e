"""Views of results: text for people, JSON and CSV for programs, the HTML page, the files of other viewers.

    text/     tables and lines of a terminal; a column of a table is added there
    data/     results as JSON and CSV, and read back; a key, a column or an output format is added there
    page/     `view`: the data, the scripts and the style of the page; an overlay is added there
    formats/  `convert`: Model Explorer, GraphML, Graphviz, Mermaid, CSV; another viewer is added there

`module_tree.py` nests the rows of all of them as the modules are nested. Nothing here computes a figure: that is done
in `inspect` and `verify`, and is in the results of `record/results`.
"""
