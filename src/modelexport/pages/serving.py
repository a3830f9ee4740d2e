"""The page for a browser on this machine, and for nobody else."""

from __future__ import annotations

from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from modelexport.errors import UserError

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")


class PageServer(ThreadingHTTPServer):
    """Serves one page at `/`, and nothing else."""

    daemon_threads = True

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
    sys_version = ""

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
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(self.server.page)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are nobody's business."""
