"""The page as one file: our own markup, style and scripts, plotly, and the data.

Names in a model come from whoever made it. The data is compressed and in base64, so that none of it can end the element
that holds it; the scripts put names on the page as text alone; and a Content-Security-Policy lets no other script run
than the two whose hashes it has, and nothing be fetched from anywhere.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from importlib import resources

from modelexport.errors import ExtraMissing
from modelexport.pages.columns import Json

# In this order: each file uses what those before it define.
SCRIPTS = (
    "text.js",
    "model.js",
    "route.js",
    "theme.js",
    "colours.js",
    "tree.js",
    "search.js",
    "map.js",
    "flow_drawing.js",
    "flow_keys.js",
    "flow.js",
    "tables.js",
    "details.js",
    "keys.js",
    "page.js",
)
_MARK = re.compile(r"\{\{(\w+)\}\}")


def page_html(title: str, data: Json) -> str:
    plotly = plotly_script()
    script = "\n".join(['"use strict";', "(() => {", *map(_part, SCRIPTS), "})();"])
    parts = {
        "policy": _policy(script, plotly),
        # The name of a file need not be text: what is not is written as an escape.
        "title": html.escape(title.encode(errors="backslashreplace").decode()),
        "style": _part("page.css"),
        "data": _packed(data),
        "script": script,
        "plotly": plotly,
    }
    return _MARK.sub(lambda mark: parts[mark[1]], _part("page.html"))


def plotly_script() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ExtraMissing(
            "the page needs plotly, which is not installed", "Install it: pip install modelexport[view]"
        ) from error
    return str(get_plotlyjs())


def _part(name: str) -> str:
    return resources.files("modelexport.pages").joinpath(name).read_text(encoding="utf-8")


def _packed(data: Json) -> str:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def _policy(*scripts: str) -> str:
    hashes = " ".join(f"'sha256-{_digest(script)}'" for script in scripts)
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
