"""The page as one file: our own markup, style and scripts, plotly, and the data; and a server for it.

    page_html    `view`: the viewer, with scripts and data
    static_page  `diff --format html`: the same head and style round markup alone
    PageServer   `view --serve`: for a browser on this machine, and for nobody else

Names in a model come from whoever made it. The data is compressed and in base64, so that none of it can end the element
that holds it; the scripts put names on the page as text alone; and a Content-Security-Policy
(https://developer.mozilla.org/docs/Web/HTTP/CSP) lets no other script run than the two whose hashes it has, and
nothing be fetched from anywhere.

    page.html   {{policy}} {{title}} {{style}} {{data}} {{script}} {{plotly}}     marks that are filled in

A page of a model without a change is the same file byte for byte, so that it can be compared and cached.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

from modelexport.errors import ExtraMissing, UserError
from modelexport.show.page.nodes import Json

# In this order: each file uses what those before it define.
_STATE = ("text", "model", "route", "theme", "colours")  # the data, what is selected, how it is coloured
_VIEWS = ("tree", "search", "map", "flow_drawing", "flow_keys", "flow")
_PANES = ("tables", "details", "keys", "page")  # `page` is the last: it starts everything
SCRIPTS = tuple(f"{name}.js" for name in (*_STATE, *_VIEWS, *_PANES))
_MARK = re.compile(r"\{\{(\w+)\}\}")


def page_html(title: str, data: Json) -> str:
    """Marks such as `{{style}}` are replaced in one pass, so that no text that is put in is searched again."""
    plotly = plotly_script()
    script = "\n".join(['"use strict";', "(() => {", *map(_part, SCRIPTS), "})();"])
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    parts = {
        "policy": _policy(script, plotly),
        "title": _title(title),
        "style": _part("page.css"),
        # `mtime=0`: the same model makes the same page, byte for byte.
        "data": base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode("ascii"),
        "script": script,
        "plotly": plotly,
    }
    return _MARK.sub(lambda mark: parts[mark[1]], _part("page.html"))


def static_page(title: str, body: str) -> str:
    """A page with the head and style of the other one, but without data and scripts. `body` is markup."""
    head, _, _ = _part("page.html").partition("<body")
    parts = {"policy": _policy(), "title": _title(title), "style": _part("page.css")}
    filled = _MARK.sub(lambda mark: parts[mark[1]], head)
    return f'{filled}<body class="document">\n<main>\n{body}\n</main>\n</body>\n</html>\n'


def _title(text: str) -> str:
    """The name of a file need not be text: what is not is written as an escape."""
    return html.escape(text.encode(errors="backslashreplace").decode())


def plotly_script() -> str:
    """From the installed package: nothing is fetched when the page is made, nor when it is opened."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        hint = "Install it: pip install modelexport[view]"
        raise ExtraMissing.of_import("the page", "plotly", error, hint) from error
    return str(get_plotlyjs())


def _part(name: str) -> str:
    return resources.files("modelexport.show.page").joinpath(name).read_text(encoding="utf-8")


def _policy(*scripts: str) -> str:
    """`unsafe-inline` for styles alone: ours is in the page, and plotly sets more. Without scripts, none may run."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii") for script in scripts)
    hashes = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")  # that a browser may have asked for


class PageServer(ThreadingHTTPServer):
    """Serves one page at `/`, and nothing else."""

    daemon_threads = True  # a browser that keeps its connection open must not keep the program

    def __init__(self, page: str, port: int = 0) -> None:
        """Port 0 is any that is free."""
        self.page = page.encode()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(f"cannot serve on port {port}: {error}", "Give another --port, or none.") from error

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_address[1]}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    server_version = "modelexport"
    sys_version = ""  # nobody needs to know the version of Python

    def do_GET(self) -> None:
        # Another name in the request means that somebody made it lead here: a page elsewhere must not read this one.
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        if host not in _NAMES:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path.split("?")[0] != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(self.server.page)))
            self.send_header("Cache-Control", "no-store")  # another model may be served here next
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's business."""
