"""Announcements of a workspace that come at once, and reads that are overtaken by writes."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.calls.live_session import LiveSession
from gateway.config.policy import PolicySettings, RuleSettings
from gateway.context.session_facts import WORKSPACE_KEY
from gateway.identity.credential_claims import CallerToken, CredentialClaims
from gateway.identity.request_context import RequestContext
from session_store import Session
from session_store.testing import ALICE
from tests.requirements import requirement
from tests.unit.sessions.parts import FOR_ALICE, Parts, replicas, request
from transports.inbound_port import Refused, Request
from transports.jsonrpc import encode


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


async def opened(parts: Parts) -> str:
    """The token of a session without a workspace."""
    return parts.token_of((await parts.resume_or_open(request())).live)


def announcing(workspace: str, token: str) -> Request:
    return request(meta={"orbit": {"workspace": workspace}}, mcp_session_id=token)


@requirement("ctx.announce-late")
@pytest.mark.parametrize("second", ["blue", "red"])
async def test_of_two_announcements_at_once_the_first_stands(second: str) -> None:
    parts = Parts(store=SlowToWrite)
    token = await opened(parts)
    red, later = announcing("red", token), announcing(second, token)
    first = await parts.require(red)
    one = asyncio.create_task(parts.attacher.apply_announced(red, FOR_ALICE, first))
    await parts.store.is_writing.wait()
    session = await parts.store.peek(first.live.session.id)
    assert session is not None and not session.context.workspace
    await parts.attacher.attach(session, None)  # a third request puts the old record into memory again
    found = await parts.require(later)
    assert parts.attacher.announces_other(later, found)
    other = asyncio.create_task(parts.attacher.apply_announced(later, FOR_ALICE, found))
    await asyncio.sleep(0)
    parts.store.may_write.set()
    assert (await one)[0].context.workspace == "red"
    if second == "red":
        agreeing, told = await other
        assert agreeing.context.workspace == "red" and json.loads(encode(told))[WORKSPACE_KEY]["applied"] is True
    else:
        with pytest.raises(Refused, match="is for workspace 'red'"):
            await other
    kept = await parts.store.peek(session.id)
    assert kept.context.workspace == "red" == first.live.session.context.workspace


@requirement("ctx.announce-late")
async def test_a_read_that_was_overtaken_by_a_write_does_not_undo_it() -> None:
    parts = Parts()
    live = (await parts.resume_or_open(request())).live
    old, new = live.session, replace(live.session, version=live.session.version + 1, log_level="error")
    live.replace_record(new)
    assert (await parts.attacher.attach(old, None)).live.session is new
    newer = replace(new, version=new.version + 1)
    assert (await parts.attacher.attach(newer, None)).live.session is newer


@requirement("cluster.context-fence")
async def test_a_context_that_was_decided_on_an_old_record_is_decided_anew() -> None:
    parts = Parts()
    token = await opened(parts)
    resolved = await parts.require(request(mcp_session_id=token))
    live, store = resolved.live, parts.store
    # Another replica has taken the session over while this one was paused, and has served an announcement.
    elsewhere = replace(live.session.context, workspace="red")
    assert await store.update(live.session.id, context=elsewhere) is not None
    reads: list[str] = []

    async def old_first(session_id: str) -> Session | None:
        reads.append(session_id)
        found: Session | None = live.session if len(reads) == 1 else await store.peek(session_id)
        return found

    parts.attacher._store = SimpleNamespace(peek=old_first, update=store.update)
    with pytest.raises(Refused, match="is for workspace 'red'"):
        await parts.attacher.apply_announced(announcing("blue", token), FOR_ALICE, resolved)
    kept = await store.peek(live.session.id)
    assert len(reads) == 2 and kept.context == elsewhere


@requirement("ctx.announce-late")
async def test_an_announcement_leaves_what_the_credential_grants() -> None:
    parts = Parts()
    token = await opened(parts)
    granted = RequestContext(ALICE, CredentialClaims(trust="sandboxed", permissions=("deploy",)), "")
    resolved = await parts.require(request(mcp_session_id=token), granted)
    announced, told = await parts.attacher.apply_announced(announcing("red", token), granted, resolved)
    assert json.loads(encode(told))[WORKSPACE_KEY] == {"workspace": "red", "applied": True}
    context = announced.context
    assert (context.workspace, context.trust, context.permissions) == ("red", "sandboxed", ("deploy",))


@requirement("ctx.announce-late")
@pytest.mark.parametrize(("workspace", "finishes"), [("red", True), ("jail", False)])
async def test_calls_in_flight_go_on_unless_the_session_may_do_other_things_now(
    workspace: str, finishes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, jail = [], RuleSettings(workspaces=("jail",), trust="sandboxed")

    async def close_outdated_links(live: LiveSession, *, finish_calls: bool) -> None:
        told.append((live.session.context.workspace, live.session.remote, finish_calls))

    monkeypatch.setattr(LiveSession, "close_outdated_links", close_outdated_links)
    parts = Parts(policy=PolicySettings(trust_announced_workspace=True, rules=(jail,)))
    token = await opened(parts)
    resolved = await parts.require(request(mcp_session_id=token))
    await parts.store.change_set(resolved.live.session.id, "remote", add='["s","","1"]')
    await parts.attacher.apply_announced(announcing(workspace, token), FOR_ALICE, resolved)
    assert told == [(workspace, (), finishes)], "a session at a URL has the former context too"


@requirement("ctx.announce-late")
@pytest.mark.parametrize("was_written", [False, True])
async def test_calls_in_flight_end_with_the_workspace_that_a_credential_no_longer_gives(
    was_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[bool] = []

    async def close_outdated_links(live: LiveSession, *, finish_calls: bool) -> None:
        told.append(finish_calls)

    monkeypatch.setattr(LiveSession, "close_outdated_links", close_outdated_links)
    red, blue = (CredentialClaims(workspace=name, names_workspace=True) for name in ("red", "blue"))
    parts = Parts()
    store, live = parts.store, (await parts.resume_or_open(request(), RequestContext(ALICE, red, ""))).live

    async def update(session_id: str, **fields: Any) -> Session | None:
        if was_written:  # by another replica, a moment ago
            await store.update(session_id, context=replace(live.session.context, workspace="blue"))
        updated: Session | None = await store.update(session_id, **fields)
        return updated

    parts.attacher._store = SimpleNamespace(peek=store.peek, update=update)
    asked = request(mcp_session_id=parts.token_of(live))
    resolved = await parts.require(asked, RequestContext(ALICE, blue, ""))
    assert resolved.context.workspace == "blue" and told == [False]


@requirement("cred.exchange")
async def test_no_server_gets_a_token_with_other_rights_than_the_context_of_its_session() -> None:
    weak, strong = (
        RequestContext(ALICE, CredentialClaims(permissions=rights, token=CallerToken(name, 9e9, name)), "")
        for name, rights in (("weak", ()), ("strong", ("admin",)))
    )
    parts = Parts(store=SlowToWrite)
    live = (await parts.resume_or_open(request(), weak)).live
    asked = request(mcp_session_id=parts.token_of(live))
    await parts.require(asked, weak)
    raised = asyncio.create_task(parts.require(asked, strong))
    await parts.store.is_writing.wait()
    assert live.token is not None and (live.token.token, live.session.context.permissions) == ("weak", ())
    parts.store.may_write.set()
    await raised
    assert (live.token.token, live.session.context.permissions) == ("strong", ("admin",))
    live.act_for(CredentialClaims(permissions=("admin",), token=CallerToken("", 0.0, "strong")))  # an operator's call
    assert live.token.token == "strong"


@requirement("rep.takeover")
async def test_a_session_that_several_requests_take_over_at_once_is_told_of_once() -> None:
    first, last = replicas(clustered=True)
    before = (await first.resume_or_open(request())).live.session
    cluster = last.cluster
    assert cluster is not None
    for claimed in await asyncio.gather(*(cluster.claim_from_owner(before, may_run=False) for _ in range(3))):
        assert claimed is not None
        last.attacher.take_over(claimed)
    await last.audit.flush()
    told = [event for event in await last.backend.audit.recent(9) if event.event == "resumed"]
    assert [event.reason for event in told] == ["taken over from a replica that does not answer"]


class Regained:
    """A session that the replica `first` has live, and that `last` has claimed, served and released since. `first` has
    not been told of it."""

    def __init__(self) -> None:
        self.first, self.last = replicas(clustered=True)

    async def made(self, *, released: bool = True) -> "Regained":
        self.live = (await self.first.resume_or_open(request())).live
        assert self.last.cluster is not None
        taken = await self.last.cluster.claim_from_owner(self.live.session, may_run=False)
        assert taken is not None
        self.last.attacher.take_over(taken)
        if released:
            await self.last.cluster.release(taken)
        return self

    async def record(self) -> Session:
        found: Session | None = await self.first.store.peek(self.live.session.id)
        assert found is not None
        return found

    async def ended(self) -> None:
        """What `first` had of before has ended, and it has something new."""
        await self.first.lifecycle.settled()
        now = self.first.live.get(self.live.session.id)
        assert self.live.ended and self.live.is_elsewhere and self.first.closed == [self.live]
        assert now is not None and not now.ended and now.session.epoch == (await self.record()).epoch


@requirement("rep.takeover", "rep.honest")
@pytest.mark.parametrize("then", ["released", "dead", "lost answer"])
async def test_processes_from_before_another_owner_serve_no_call(then: str) -> None:
    case = await Regained().made(released=then != "dead")
    first, cluster = case.first, case.first.cluster
    assert cluster is not None
    if then == "dead":
        claimed = await cluster.claim_from_owner(await case.record(), may_run=False)
        assert claimed is not None
        first.attacher.take_over(claimed)
        first.attacher.take_over(claimed)  # for another request
    elif then == "lost answer":  # the claim was made, and the store's answer did not come
        await first.backend.directory.claim(case.live.session.id, cluster.replica, epoch=(await case.record()).epoch)
    token = first.token_of(case.live)
    resolved = await first.require(request(mcp_session_id=token))
    reason = "drain" if then == "released" else "takeover"
    assert resolved.live is not case.live and resolved.live.new_process == reason
    await case.ended()
    assert (await first.require(request(mcp_session_id=token))).live is resolved.live


@requirement("rep.takeover")
async def test_an_old_read_does_not_end_what_began_after_it() -> None:
    case = await Regained().made()
    old = case.live.session
    now = (await case.first.attacher.attach(await case.record(), None)).live
    assert now is not case.live
    assert (await case.first.attacher.attach(old, None)).live is now
    assert (await case.first.attacher.attach(await case.record(), None)).live is now and not now.ended


@requirement("rep.takeover")
async def test_a_write_that_returns_another_claim_does_not_hide_it() -> None:
    case = await Regained().made()
    first, cluster = case.first, case.first.cluster
    assert cluster is not None
    await first.backend.directory.claim(case.live.session.id, cluster.replica, epoch=(await case.record()).epoch)
    await first.records.update(case.live, log_level="error")
    assert case.live.session.owner == "" and case.live.read_at == 0.0
    await first.attacher.refresh(case.live)
    found = await first.require(request(mcp_session_id=first.token_of(case.live)))
    assert found.live is not case.live and found.live.session.log_level == "error"
    await case.ended()


@requirement("rep.takeover")
async def test_news_of_a_claim_from_before_does_not_end_what_has_begun_since() -> None:
    case = await Regained().made()
    first, cluster = case.first, case.first.cluster
    assert cluster is not None
    now = (await first.attacher.attach(await case.record(), None)).live
    await cluster.beat()
    await case.ended()
    assert first.live.get(now.session.id) is now and not cluster.may_have_lost(now.session.id)
    taken = await case.last.cluster.claim(now.session) if case.last.cluster else None
    assert taken is not None
    await cluster.beat()
    await first.lifecycle.settled()
    assert now.ended and first.live.ids() == []
