"""The resources of a session's links: which prestarted process is taken."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from gateway.config.sandbox import Sandbox
from gateway.config.upstreams import UpstreamSettings
from gateway.context.link_resources import LinkResources
from gateway.upstreams.session_resources import PrestartedProcess, SessionResources
from session_store import Session
from session_store.testing import FakeClock, a_session
from tests.requirements import requirement
from transports.upstream_port import ConnectOptions

pytestmark = pytest.mark.anyio

SANDBOXES = {"direct": Sandbox(profile="standard"), "sandboxed": Sandbox(profile="strict")}


class Parts:
    """What the resources are made of, as far as a process is chosen by it."""

    def __init__(self) -> None:
        self.prestarted: PrestartedProcess | None = None
        self.closed: list[str] = []

    async def environment(self, session: Session, correlation: str) -> dict[str, str]:
        return {"A": "b"}  # it says nothing of the trust

    async def child(self, *_: Any) -> LinkResources:
        return LinkResources(given=ConnectOptions(env={"MADE": "now"}))

    async def enclosed(self, resources: LinkResources, session_id: str, sandbox: Sandbox) -> LinkResources:
        return resources

    async def process(self, session: Session) -> Any:
        return lambda: None

    async def close(self) -> None:
        self.closed.append("link")

    def resources(self) -> SessionResources:
        environment = SimpleNamespace(of=self.environment, facts=lambda *_: {}, comparable=dict)
        enclosing = SimpleNamespace(sandbox=SANDBOXES.__getitem__, of_session=self.enclosed)
        given: Any = {
            "grants": SimpleNamespace(for_child=self.child),
            "assertions": None,
            "credentials": None,
            "environment": environment,
            "quotas": SimpleNamespace(process=self.process),
            "take_prestarted": lambda _: self.prestarted,
            "enclosing": enclosing,
        }
        return SessionResources(UpstreamSettings(command="cat"), **given)


@requirement("box.trust", "proc.warm")
@pytest.mark.parametrize(("trust", "is_taken"), [("direct", True), ("sandboxed", False)])
async def test_a_process_with_the_walls_of_another_trust_is_not_taken(trust: str, is_taken: bool) -> None:
    parts = Parts()
    link: Any = SimpleNamespace(is_unheard=True, close=parts.close)
    grant = LinkResources(given=ConnectOptions(env={"MADE": "before"}))
    parts.prestarted = PrestartedProcess(grant, link, {"A": "b"}, SANDBOXES["direct"], lambda: None)
    session = a_session(FakeClock())
    live: Any = SimpleNamespace(session=replace(session, context=replace(session.context, trust=trust)))
    found = await parts.resources().of(live, "", "")
    assert (found.given.started is link) is is_taken and found.given.env == {"MADE": "before" if is_taken else "now"}
    assert parts.closed == ([] if is_taken else ["link"])
