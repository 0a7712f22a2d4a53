"""Links of a session, opened while an operator watches its messages."""

from types import SimpleNamespace
from typing import Any

from gateway.calls.messages_for_operators import MessageRecorder
from gateway.context.resources_for_links import LinkResources
from gateway.upstreams.link_env_and_headers import secrets_of_link
from gateway.upstreams.link_opener import SessionLinks
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from tests.unit.upstreams.parts import returning
from transports.era import Era
from transports.upstream_port import ConnectOptions


@requirement("ops.frames", "cred.refresh")
async def test_secrets_of_a_process_that_starts_are_hidden_from_who_watches_already() -> None:
    files: Any = SimpleNamespace(known=["the token in a file"])
    given = ConnectOptions(env={"WORD": "the word of a variable"})
    recorder = MessageRecorder("a session", "ops")
    live: Any = SimpleNamespace(session=a_session(FakeClock()), renewals=0, recorder=recorder)
    resources = SimpleNamespace(of=returning(LinkResources(given=given, files=files)), secrets=secrets_of_link)
    links: Any = SimpleNamespace(name="files", is_gateway=False, resources=resources)
    await SessionLinks(links, live, ("files", Era.MODERN, b"{}"), None, "").resources()
    recorder.line("files", "the word of a variable and the token in a file")
    (line,), _ = recorder.lines.behind(0, 1)
    assert line.text == "[redacted] and [redacted]"
