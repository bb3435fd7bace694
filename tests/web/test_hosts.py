"""Names under which browsers may open the pages."""

from __future__ import annotations

import pytest

from gpuledger.web.hosts import HostCheck, own_domains
from gpuledger.web.http import Request, Response

PAGE = Response.text(200, "page")


def status(host: str | None, *domains: str, **headers: str) -> int:
    """Of the response to a browser."""
    sent = {"accept-language": "en"} | ({} if host is None else {"host": host}) | headers
    request = Request("GET", "/", {}, sent, "HTTP/1.1", keep_alive=True)
    return HostCheck(lambda _: PAGE, domains)(request).status


@pytest.mark.parametrize(
    "host", [None, "", "a", "a:1", "1.2.3.4", "1.2.3.4:80", "[fe80::1]:9400", "A.LOCAL", "b.a.test.:1"]
)
def test_accepted(host: str | None) -> None:
    """IP addresses, names without a dot, and names in the domains."""
    assert status(host, "a.test") == 200


@pytest.mark.parametrize(
    "host", ["b.test", "xa.test", "a.test.evil", "1.2.3.4.evil", "local.evil:80", "[::1].evil", "1.2.3.4e"]
)
def test_refused(host: str) -> None:
    """Names that only look like those."""
    assert status(host, "a.test") == 403


def test_the_response_names_the_flag() -> None:
    """With the name as the browser sent it, without the port."""
    request = Request("GET", "/", {}, {"host": "a.evil:80", "accept-language": ""}, "HTTP/1.1", keep_alive=True)

    body = HostCheck(lambda _: PAGE, ())(request).body

    assert isinstance(body, bytes)
    assert b"--web.allowed-hosts=a.evil\n" in body


def test_own_domains() -> None:
    """The host's name only if it is a full one, because one label could be a top-level domain."""
    text = "# search no.example\nnameserver 10.0.0.1\nsearch svc.cluster.local example.com com\ndomain example.org\n"

    assert own_domains("gpu1", text) == ["svc.cluster.local", "example.com", "example.org"]
    assert own_domains("gpu1.example.net", "") == ["gpu1.example.net"]
