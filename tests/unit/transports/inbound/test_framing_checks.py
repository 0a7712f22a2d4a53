"""Heads of requests that two readers could understand differently (RFC 9112)."""

import pytest

from tests.requirements import requirement
from transports.inbound.framing_checks import BadRequest, plain_target

pytestmark = requirement("wall.framing")

HOST = (b"host", b"127.0.0.1")
LENGTH = (b"content-length", b"5")
CHUNKED = (b"transfer-encoding", b"chunked")
BAD_HOSTS = (b"a/b", b"a@b", b"a" * 262)


@pytest.mark.parametrize(
    ("target", "plain", "host"),
    [
        (b"/mcp?a=b", b"/mcp?a=b", b"127.0.0.1"),
        (b"http://example.com:8080/mcp?a=b", b"/mcp?a=b", b"example.com:8080"),
        (b"https://[::1]:80", b"/", b"[::1]:80"),
    ],
)
def test_the_host_of_an_absolute_target_replaces_the_header(target: bytes, plain: bytes, host: bytes) -> None:
    headers = [HOST, (b"accept", b"x")]
    assert plain_target("GET", target, "1.1", headers) == plain
    assert headers == [(b"host", host), (b"accept", b"x")]


@pytest.mark.parametrize(
    ("headers", "version"),
    [
        ([HOST, LENGTH], "1.1"),
        ([HOST, CHUNKED], "1.1"),
        ([HOST, (b"transfer-encoding", b" Chunked ")], "1.1"),
        ([HOST, (b"expect", b"100-Continue")], "1.1"),
        ([], "1.0"),
        ([HOST, (b"expect", b"tea")], "1.0"),
    ],
)
def test_a_head_with_one_meaning_passes(headers: list[tuple[bytes, bytes]], version: str) -> None:
    assert plain_target("POST", b"/", version, headers) == b"/"


@pytest.mark.parametrize(
    ("status", "headers", "version"),
    [
        *((400, hosts, "1.1") for hosts in ([], [HOST, HOST], *([(b"host", name)] for name in BAD_HOSTS))),
        *((400, [HOST, *bodies], "1.1") for bodies in ((LENGTH, CHUNKED), (CHUNKED, CHUNKED), (LENGTH, LENGTH))),
        *((400, [HOST, other], "1.0") for other in (HOST, CHUNKED)),
        *((501, [HOST, (b"transfer-encoding", coding)], "1.1") for coding in (b"gzip, chunked", b"identity")),
        *((417, [HOST, (b"expect", b"tea")], "1.1"), (505, [HOST], "2.0"), (505, [HOST], "0.9")),
    ],
)
def test_a_head_with_more_than_one_meaning_is_refused(
    status: int, headers: list[tuple[bytes, bytes]], version: str
) -> None:
    with pytest.raises(BadRequest) as refused:
        plain_target("POST", b"/", version, headers)
    assert refused.value.status == status
    response = refused.value.response()
    assert response.startswith(f"HTTP/1.1 {status} ".encode()) and b"connection: close\r\n" in response


NO_PATHS = (b"*", b"a:80", b"/a#b", b"ftp://a/b", b"http://user@a/b", b"http:///b", b"http://[::1/b", b"")


@pytest.mark.parametrize(
    ("method", "target", "status"), [("CONNECT", b"a:80", 501), *(("GET", target, 400) for target in NO_PATHS)]
)
def test_a_target_that_names_no_path_of_this_host_is_refused(method: str, target: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as refused:
        plain_target(method, target, "1.1", [HOST])
    assert refused.value.status == status
    assert plain_target("OPTIONS", b"*", "1.1", [HOST]) == b"*", "options may be about the server"
