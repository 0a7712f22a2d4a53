"""Who is let in: by which names of the gateway, by the link of the terminal, and after how many wrong keys."""

import asyncio
from time import time

import httpx
import pytest
from starlette.applications import Starlette

from gateway.admin.auth import (
    FREE,
    LONGEST_S,
    VALID_S,
    Access,
    HostNotAllowed,
    OperatorHosts,
    SignInAttempts,
    SignInLink,
    TooManyAttempts,
)
from gateway.admin.console import Console
from gateway.observability.audit import Audit
from session_store import KeyRing, MemoryBackend
from session_store.testing import FakeClock
from session_store.tokens import generate_key
from tests.requirements import requirement
from tests.unit.admin.test_operations import FakeReplicas, operations_of
from transports.inbound.http import Guard

pytestmark = pytest.mark.anyio

ALWAYS = ("127.0.0.1:8080", "localhost:9092", "LOCALHOST", "[::1]:8080", "10.1.2.3", "192.0.2.7:9090", "[fe80::1]")
NAMED = ("admin.example:9090", "ADMIN.example", "a.b.example")
OTHERS = (
    "",
    "attacker.example",
    "admin.example.attacker.test",
    "b.example",
    "localhost.attacker.test",
    "[::1",
    "a@b:x",
    "attacker.example@localhost",
    "localhost/attacker.example",
    "127.0.0.1?x",
    "127.0.0.1#x",
    "x" * 10_000 + ".b.example",
)


@requirement("ops.console-host")
def test_addresses_pass_and_names_that_are_allowed() -> None:
    for hosts, passing, refused in (
        (OperatorHosts(["admin.example", "*.b.example"]), (*ALWAYS, *NAMED), OTHERS),
        (OperatorHosts(["*"]), (*ALWAYS, *NAMED, *OTHERS), ()),
        (OperatorHosts(), ALWAYS, NAMED),
    ):
        for host in passing:
            hosts.check(host)
        for host in refused:
            with pytest.raises(HostNotAllowed, match=r"gateway\.admin\.allowed_hosts"):
                hosts.check(host)


def test_a_link_opens_once_and_for_ten_minutes() -> None:
    clock = FakeClock()
    link = SignInLink(clock)
    assert len(link.token) >= 43 and not link.opens_with("") and not link.take(link.token + "x")
    assert not link.take("\ud800")
    assert link.opens_with(link.token) and link.take(link.token) and not link.take(link.token)
    late = SignInLink(clock)
    clock.pass_time(VALID_S)
    assert not late.take(late.token)


OTHER = "http://127.0.0.1:8081"


class ConsoleWithLink:
    """A console that no key opens, and clients of it."""

    def __init__(self, ring: KeyRing | None = None) -> None:
        self.link = SignInLink()
        backend = MemoryBackend(clock=FakeClock(time()))
        operations = operations_of(backend, FakeReplicas(), time)
        audit, ring = Audit(backend.audit, time), ring or KeyRing.ephemeral()
        self.access = Access({}, ring, guard=Guard(), marks=backend.marks, audit=audit, link=self.link)
        self.app = Starlette(routes=Console(operations, self.access).routes)

    def client(self, other: "ConsoleWithLink | None" = None) -> httpx.AsyncClient:
        """A browser. The other console is at `OTHER`."""
        transport, mounts = httpx.ASGITransport(self.app), {OTHER: httpx.ASGITransport((other or self).app)}
        return httpx.AsyncClient(transport=transport, mounts=mounts, base_url="http://127.0.0.1:8080")

    @property
    def path(self) -> str:
        return f"/admin/sign-in/{self.link.token}"


@pytest.fixture
async def console() -> ConsoleWithLink:
    return ConsoleWithLink()


@requirement("first.link")
async def test_the_link_signs_one_browser_in(console: ConsoleWithLink) -> None:
    async with console.client() as browser, console.client() as other:
        assert (await browser.get("/admin")).headers["location"].endswith("/admin/sign-in")
        page = await browser.get("/admin/sign-in")
        assert page.status_code == 200 and "gateway.admin.keys" in page.text and 'name="key"' not in page.text
        signed_in = await browser.get(console.path)
        assert signed_in.status_code == 200 and signed_in.headers["refresh"] == "0; url=/admin"
        cookie = signed_in.headers["set-cookie"]
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie and console.link.token not in cookie
        assert (await browser.get("/admin")).status_code == 200
        for again in (other, browser):
            refused = await again.get(console.path)
            assert refused.status_code == 403 and "has been used" in refused.text
            assert "set-cookie" not in refused.headers
        assert (await other.get("/admin")).status_code == 303
        await browser.post("/admin/sign-out")
        assert (await browser.get("/admin")).status_code == 303


@requirement("first.link")
async def test_what_only_looks_at_the_link_does_not_use_it(console: ConsoleWithLink) -> None:
    async with console.client() as browser:
        prefetch = {"Sec-Purpose": "prefetch;prerender"}
        for looked in (await browser.head(console.path), await browser.get(console.path, headers=prefetch)):
            assert looked.status_code == 503 and "set-cookie" not in looked.headers
        assert (await browser.get(f"{console.path}x")).status_code == 403
        assert "set-cookie" in (await browser.get(console.path)).headers


@requirement("first.link")
async def test_of_two_at_once_one_is_let_in(console: ConsoleWithLink) -> None:
    async with console.client() as one, console.client() as other:
        answers = await asyncio.gather(one.get(console.path), other.get(console.path))
    assert sorted(answer.status_code for answer in answers) == [200, 403]


@requirement("first.link")
async def test_a_sign_in_by_link_ends_with_the_process_that_made_the_link(console: ConsoleWithLink) -> None:
    async with console.client() as browser:
        await browser.get(console.path)
        console.access._proofs.clear()  # as in a new process, whose link has another proof
        assert (await browser.get("/admin")).status_code == 303


@requirement("ops.console")
@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
async def test_another_site_signs_nobody_out(console: ConsoleWithLink, headers: dict[str, str]) -> None:
    async with console.client() as browser:
        await browser.get(console.path)
        refused = await browser.post("/admin/sign-out", headers=headers)
        assert "set-cookie" not in refused.headers
        assert (await browser.get("/admin")).status_code == 200


@requirement("ops.console")
async def test_gateways_on_other_ports_of_a_host_leave_a_browser_signed_in() -> None:
    """Cookies have no port: those of gateways with other keys have other names."""
    one, two = ConsoleWithLink(), ConsoleWithLink()
    async with one.client(two) as browser:
        await browser.get(one.path)
        await browser.get(f"{OTHER}{two.path}")
        assert [(await browser.get(f"{host}/admin")).status_code for host in ("", OTHER)] == [200, 200]
        await browser.post(f"{OTHER}/admin/sign-out")
        assert [(await browser.get(f"{host}/admin")).status_code for host in ("", OTHER)] == [200, 303]


@requirement("ops.console")
async def test_replicas_know_the_cookie_while_keys_are_replaced() -> None:
    """The one that has the new key already and the one that has it as its second one."""
    old, new = generate_key(), generate_key()
    before, after = ConsoleWithLink(KeyRing([old, new])), ConsoleWithLink(KeyRing([new, old]))
    after.access._proofs, after.access._marks = before.access._proofs, before.access._marks  # one store
    async with before.client(after) as browser:
        await browser.get(before.path)
        assert (await browser.get(f"{OTHER}/admin")).status_code == 200
        await browser.post(f"{OTHER}/admin/sign-out")
        assert (await browser.get("/admin")).status_code == 303


@requirement("wall.memory")
def test_attempts_wait_longer_and_longer_and_are_forgotten() -> None:
    clock = FakeClock()
    attempts = SignInAttempts(clock)
    waits = []
    for _ in range(FREE + 8):
        attempts.wrong("192.0.2.1")
        try:
            attempts.check("192.0.2.1")
        except TooManyAttempts as error:
            waits.append(error.wait_s)
    assert waits == sorted(waits) and waits[0] == 1.0 and waits[-1] == LONGEST_S and len(waits) == 9
    clock.pass_time(LONGEST_S)
    attempts.check("192.0.2.1")
    for number in range(10_000):
        attempts.wrong(f"10.0.{number // 250}.{number % 250}")
    assert len(attempts._wrong) <= 4_096
