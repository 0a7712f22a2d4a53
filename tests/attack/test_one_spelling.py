"""What we sign has one spelling: with another last character, whose spare bits decoders pass over, it is refused."""

import asyncio
import string
from collections.abc import Callable

import msgspec
import pytest
from starlette.requests import Request
from starlette.responses import Response

from gateway.admin.auth import Access
from gateway.bridge.request_state import Binding, RequestStateSeal
from gateway.context.session_assertions import Assertions
from gateway.observability.audit import Audit
from gateway.tasks.task_handles import TaskHandle, TaskHandles
from session_store import ANONYMOUS, KeyRing, MemoryBackend, Purpose, Session, TokenCodec
from session_store.session import new_session_id
from tests.requirements import requirement
from tests.support.credentials import sha256
from transports.inbound.host_and_origin import Guard
from transports.inbound_port import Refused

ALPHABET = string.ascii_letters + string.digits + "-_"
Kind = tuple[str, Callable[[str], bool]]


def session() -> Session:
    return Session(
        id=new_session_id(),
        principal=ANONYMOUS,
        endpoint="/mcp",
        era="legacy",
        created_at=0,
        used_at=0,
        idle_ttl_s=60,
        max_age_s=60,
    )


def signed(purpose: Purpose) -> Kind:
    codec = TokenCodec(KeyRing.ephemeral(), purpose)
    return codec.sign(new_session_id()), lambda text: codec.verify(text) is not None


def state() -> Kind:
    seal, binding = RequestStateSeal(KeyRing.ephemeral(), lambda: 0.0), Binding(ANONYMOUS, "/mcp", lambda: "digest")
    result = seal.seal({}, session_id="s", binding=binding)

    def opens(text: str) -> bool:
        try:
            return seal.open(msgspec.Raw(msgspec.json.encode(text)), binding) is not None
        except Refused:
            return False

    return msgspec.json.decode(result["requestState"]), opens


def assertion() -> Kind:
    assertions = Assertions(KeyRing.ephemeral(), issuer="gateway")
    return assertions.of(session(), "http://server"), lambda text: assertions.session_of(text) is not None


def operator_cookie() -> Kind:
    backend = MemoryBackend()
    audit = Audit(backend.audit, lambda: 0.0)
    access = Access({"ops": [sha256("key")]}, KeyRing.ephemeral(), guard=Guard(), flags=backend.flags, audit=audit)
    response = Response()
    assert asyncio.run(access.sign_in(Request({"type": "http", "headers": []}), response, "key"))
    name, _, cookie = response.headers["set-cookie"].partition(";")[0].partition("=")

    def lets_in(text: str) -> bool:
        request = Request({"type": "http", "headers": [(b"cookie", f"{name}={text}".encode())]})
        return asyncio.run(access.operator(request)) == "ops"

    return cookie, lets_in


def task_handle() -> Kind:
    handles = TaskHandles(KeyRing.ephemeral())
    text = handles.sign(TaskHandle("relayed", new_session_id(), "/mcp", "server", "task-1"))
    return text, lambda text: handles.read(text) is not None


@requirement("wall.memory", "id.forged")
@pytest.mark.parametrize(
    "made",
    [lambda: signed(Purpose.TOKEN), lambda: signed(Purpose.COOKIE), state, assertion, operator_cookie, task_handle],
)
def test_a_signed_value_is_good_in_one_spelling(made: Callable[[], Kind]) -> None:
    # The last character has spare bits for some lengths only; those of states differ with what is in them.
    text, is_good = made()
    assert [last for last in ALPHABET if is_good(text[:-1] + last)] == [text[-1]]
    assert not any(is_good(text + more) for more in ("=", "==", "A"))
