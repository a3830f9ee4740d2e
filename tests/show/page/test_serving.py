"""The page on this machine alone, and nothing beside it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from modelexport.errors import UserError
from modelexport.show.page.html import PageServer


@pytest.fixture
def server() -> Iterator[PageServer]:
    with PageServer("<p>page") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def asked(server: PageServer, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    connection = HTTPConnection(*server.server_address[:2], timeout=30)  # type: ignore[arg-type]
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    found = answer.status, answer.read()
    connection.close()
    return found


def test_the_page_is_served(server: PageServer) -> None:
    assert asked(server, "/") == (200, b"<p>page")
    assert server.url.startswith("http://127.0.0.1:")


@pytest.mark.parametrize("path", ["/etc/passwd", "/../pyproject.toml", "/index.html"])
def test_nothing_else_is(server: PageServer, path: str) -> None:
    assert asked(server, path)[0] == 404


def test_a_page_elsewhere_cannot_have_its_name_lead_here(server: PageServer) -> None:
    assert asked(server, "/", host="evil.example")[0] == 403
    assert asked(server, "/", host="localhost:1")[0] == 200


def test_it_takes_nothing(server: PageServer) -> None:
    assert asked(server, "/", method="POST")[0] == 501


def test_a_port_that_is_taken_is_said(server: PageServer) -> None:
    with pytest.raises(UserError, match="cannot serve on port"):
        PageServer("", server.server_address[1])
