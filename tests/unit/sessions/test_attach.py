"""Announcements of a workspace that come at once, and reads that are overtaken by writes."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from gateway.context.facts import WORKSPACE_KEY
from gateway.identity.credential_claims import CredentialClaims
from gateway.identity.request_context import RequestContext
from session_store import MemoryBackend, Session
from session_store.testing import ALICE, FakeClock
from tests.requirements import requirement
from tests.unit.sessions.parts import Parts
from transports.era import Era
from transports.inbound_port import Refused, Request
from transports.jsonrpc import encode
from transports.soon import arrived

FOR_ALICE = RequestContext(ALICE, None, "")

pytestmark = pytest.mark.anyio


class SlowToWrite:
    """A store whose updates wait for `may_write`; reads do not wait for them."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.is_writing = asyncio.Event()
        self.may_write = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def update(self, session_id: str, **fields: Any) -> Session | None:
        self.is_writing.set()
        await self.may_write.wait()
        updated: Session | None = await self._store.update(session_id, **fields)
        return updated


def request(workspace: str, token: str = "") -> Request:
    headers = {"mcp-session-id": token} if token else {}
    meta = {"orbit": {"workspace": workspace}} if workspace else {}
    return Request(era=Era.LEGACY, endpoint="/mcp", headers=headers, meta=meta)


async def opened(parts: Parts) -> str:
    """The token of a session without a workspace."""
    return parts.carriers.token((await arrived(parts.resolver.resume_or_open(request(""), FOR_ALICE))).live.session)


@requirement("ctx.announce-late")
@pytest.mark.parametrize("second", ["blue", "red"])
async def test_of_two_announcements_at_once_the_first_stands(second: str) -> None:
    clock = FakeClock()
    backend = MemoryBackend(clock=clock)
    store = SlowToWrite(backend.sessions)
    parts = Parts(backend=backend, store=store, clock=clock)
    token = await opened(parts)
    first = await arrived(parts.resolver.require(request("red", token), FOR_ALICE))
    one = asyncio.create_task(parts.resolver.apply_announced(request("red", token), FOR_ALICE, first))
    await store.is_writing.wait()
    session = await backend.sessions.peek(first.live.session.id)
    assert session is not None and not session.context.workspace
    await arrived(parts.attacher.attach(session, None))  # a third request puts the old record into memory again
    later = await arrived(parts.resolver.require(request(second, token), FOR_ALICE))
    assert parts.resolver.announces_other(request(second, token), later)
    other = asyncio.create_task(parts.resolver.apply_announced(request(second, token), FOR_ALICE, later))
    await asyncio.sleep(0)
    store.may_write.set()
    resolved, _ = await one
    assert resolved.context.workspace == "red"
    if second == "red":
        agreeing, told = await other
        assert agreeing.context.workspace == "red" and json.loads(encode(told))[WORKSPACE_KEY]["applied"] is True
    else:
        with pytest.raises(Refused, match="is for workspace 'red'"):
            await other
    kept = await backend.sessions.peek(session.id)
    assert kept is not None and kept.context.workspace == "red" == first.live.session.context.workspace


@requirement("ctx.announce-late")
async def test_a_read_that_was_overtaken_by_a_write_does_not_undo_it() -> None:
    parts = Parts()
    token = await opened(parts)
    live = (await arrived(parts.resolver.require(request("", token), FOR_ALICE))).live
    old, new = live.session, structs.replace(live.session, version=live.session.version + 1, log_level="error")
    live.replace_record(new)
    assert (await arrived(parts.attacher.attach(old, None))).live.session is new
    newer = structs.replace(new, version=new.version + 1)
    assert (await arrived(parts.attacher.attach(newer, None))).live.session is newer


@requirement("cluster.context-fence")
async def test_a_context_that_was_decided_on_an_old_record_is_decided_anew() -> None:
    parts = Parts()
    token = await opened(parts)
    resolved = await arrived(parts.resolver.require(request("", token), FOR_ALICE))
    live, store = resolved.live, parts.backend.sessions
    # Another replica has taken the session over while this one was paused, and has served an announcement.
    elsewhere = structs.replace(live.session.context, workspace="red")
    assert await store.update(live.session.id, context=elsewhere) is not None

    reads = 0
    peek = store.peek

    async def old_first(session_id: str) -> Session | None:
        nonlocal reads
        reads += 1
        return live.session if reads == 1 else await peek(session_id)

    parts.attacher._store = SimpleNamespace(peek=old_first, update=store.update)
    with pytest.raises(Refused, match="is for workspace 'red'"):
        await parts.attacher.apply_announced(request("blue", token), FOR_ALICE, resolved)
    kept = await peek(live.session.id)
    assert reads == 2 and kept is not None and kept.context == elsewhere


@requirement("ctx.announce-late")
async def test_an_announcement_leaves_what_the_credential_grants() -> None:
    parts = Parts()
    token = await opened(parts)
    granted = RequestContext(ALICE, CredentialClaims(trust="sandboxed", permissions=("deploy",)), "")
    resolved = await arrived(parts.resolver.require(request("", token), granted))
    announced, told = await parts.resolver.apply_announced(request("red", token), granted, resolved)
    assert json.loads(encode(told))[WORKSPACE_KEY] == {"workspace": "red", "applied": True}
    context = announced.context
    assert (context.workspace, context.trust, context.permissions) == ("red", "sandboxed", ("deploy",))
