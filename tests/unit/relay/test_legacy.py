"""Progress of a client on what a server has asked it, in the legacy era."""

from typing import Any, cast

import msgspec

from gateway.calls.live_session import LiveSession
from gateway.relay.legacy import _progress_of_question
from tests.requirements import requirement


class Asker:
    """The conversation with the server that asked, and the session's list of questions."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.questions = self

    def asker(self, token: Any) -> tuple["Asker", msgspec.Raw] | None:
        return (self, msgspec.Raw(b'"theirs"')) if token == "ours" else None

    def notify(self, method: str, params: bytes) -> None:
        self.sent.append((method, msgspec.json.decode(params)))


@requirement("wall.return")
def test_a_server_gets_its_token_and_none_of_the_gateways_keys() -> None:
    asker = Asker()
    meta = b'{"a": 1, "io.github.mcp-session-gateway/context": {"workspace": "forged"}}'
    params = {"progressToken": msgspec.Raw(b'"ours"'), "progress": msgspec.Raw(b"1"), "_meta": msgspec.Raw(meta)}
    assert _progress_of_question(cast(LiveSession, asker), params)
    assert asker.sent == [("notifications/progress", {"progressToken": "theirs", "progress": 1, "_meta": {"a": 1}})]
    assert not _progress_of_question(cast(LiveSession, asker), {"progressToken": msgspec.Raw(b'"other"')})
