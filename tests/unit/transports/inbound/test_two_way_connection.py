"""What a connected client's messages may do to its connection."""

import json
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from tests.requirements import requirement
from tests.support.mcp_clients import modern_body
from transports.inbound.two_way_connection import TwoWayConnection
from transports.json_part_counts import ANSWER_PARTS
from transports.jsonrpc import encode

pytestmark = requirement("wire.connection-survives")


class Answered:
    """An answer of the endpoint."""

    status = 200

    def __init__(self, number: int, name: str | None) -> None:
        self.headers: dict[str, str] = {"mcp-session-id": "s", "mcp-gateway-session": "s"}
        result: dict[str, Any] = {"parts": [[]] * ANSWER_PARTS} if name == "large" else {"name": name}
        self._frame = {"jsonrpc": "2.0", "id": number, "result": result}

    async def begun(self) -> None:
        """It has."""

    async def frames(self) -> AsyncIterator[bytes]:
        yield json.dumps(self._frame).encode()

    async def leave(self, wait_s: float = 0.0) -> None:
        """Nothing to leave."""


class Ends:
    """Both ends of a connection: an endpoint that answers each request with its `Mcp-Name`, where a body with `explode`
    raises, and the client, which keeps what it gets."""

    def __init__(self, token: str = "") -> None:
        self.got: list[Any] = []
        self.connection = TwoWayConnection(cast("Any", self), self.write, token=token)

    def ask(self, method: str, headers: dict[str, str], body: bytes = b"", peer: str = "") -> Answered:
        if b"explode" in body:
            raise RuntimeError("nobody foresaw this")
        number = 0 if method == "DELETE" else json.loads(body)["id"]  # a DELETE ends the session, and has no body
        return Answered(number, headers.get("mcp-name"))

    async def write(self, data: bytes) -> None:
        self.got.append(json.loads(data))


async def test_a_name_that_cannot_be_read_is_left_to_the_endpoint() -> None:
    ends = Ends()
    for number, named in enumerate((b"1e400", b'"echo"')):
        body = json.dumps(modern_body("tools/call", {"name": "@"}, request_id=number)).encode()
        await ends.connection.receive(body.replace(b'"@"', named))
    await ends.connection.close()
    assert sorted(str(each["result"]["name"]) for each in ends.got) == ["None", "echo"]


async def test_an_error_that_nobody_foresaw_answers_its_request_and_the_next_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ends = Ends(token="t")
    await ends.connection.receive(b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"a":"explode"}}')
    await ends.connection.receive(b'{"jsonrpc":"2.0","method":"notifications/x","params":{"a":"explode"}}')
    await ends.connection.receive(b'{"jsonrpc":"2.0","id":2,"method":"initialize","params":{}}')
    assert [(each["id"], each.get("error", {}).get("code")) for each in ends.got] == [(1, -32603), (2, None)]
    assert "foresaw" not in json.dumps(ends.got) and "could not be handled" in caplog.text


async def test_a_request_after_a_failed_initialize_is_answered_with_its_reason_and_a_notification_is_not() -> None:
    class Refusing(Ends):
        def ask(self, method: str, headers: dict[str, str], body: bytes = b"", peer: str = "") -> Answered:
            answer = Answered(json.loads(body).get("id"), None)
            message = "could not be started" if b'"initialize"' in body else "Session not found."
            answer.headers, answer._frame["error"] = {}, {"code": -32013, "message": message}
            del answer._frame["result"]
            return answer

    ends = Refusing()
    for method, more in (("initialize", {"id": 0}), ("tools/list", {"id": 1}), ("notifications/initialized", {})):
        await ends.connection.receive(encode({"jsonrpc": "2.0", **more, "method": method, "params": {}}))
    await ends.connection.close()
    assert [(each["id"], each["error"]["message"]) for each in ends.got] == [
        (0, "could not be started"),
        (1, "could not be started"),
    ]


async def test_what_the_gateway_adds_to_an_answer_does_not_count_as_its_parts() -> None:
    ends = Ends()
    body = json.dumps(modern_body("tools/call", {"name": "large"}, request_id=1)).encode()
    await ends.connection.receive(body)
    await ends.connection.close()
    assert len(ends.got[0]["result"]["parts"]) == ANSWER_PARTS
