"""A large body is read from callers who may call, and from nobody else."""

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer
from tests.support.gateway_process import RunningGateway
from tests.support.http_bytes import answers, listener_of
from tests.support.mcp_clients import ACCEPT, Legacy

HEAD = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: {ACCEPT['Accept']}\r\n"


@requirement("wall.before-auth")
@pytest.mark.parametrize("credential", ["", "Authorization: Bearer wrong\r\n"])
def test_a_stranger_is_refused_before_a_large_body_is_read(keyed: RunningGateway, credential: str) -> None:
    declared = f"{HEAD}{credential}Content-Length: 4000000\r\n\r\n".encode()
    heard = answers(listener_of(keyed.url), [declared, b"x" * 1_024], expected=1)
    assert heard.statuses == [401], "the rest of the body was not waited for"

    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    undeclared = f"{HEAD}{credential}Transfer-Encoding: chunked\r\n\r\n".encode()
    heard = answers(listener_of(keyed.url), [undeclared, chunk, chunk], expected=1)
    assert heard.statuses == [401], "the end of the body was not waited for"


def test_a_large_body_of_a_caller_is_read_whole(keyed: RunningGateway, http: httpx.Client) -> None:
    client = Legacy(keyed.at("probe"), http, headers=bearer(KEYS["alice"])).open()
    answer = client.call("tools/call", {"name": "echo", "arguments": {"text": "x" * 1_000_000}})
    assert answer.status_code == 200, answer.text[:300]
