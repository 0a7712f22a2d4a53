"""`check`: the wait for packages that are fetched, and what is told of many sandboxes."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.cli.check import of_sandboxes, until_fetched
from gateway.config.settings import Settings
from gateway.doctor import servers
from gateway.upstreams.server_facts import ServerState
from tests.requirements import requirement

pytestmark = requirement("ops.check")


class Fetching:
    """A gateway with one server, which starts once its package is fetched. It is fetched at the second look."""

    def __init__(self, *, ends: bool) -> None:
        self.name, self.ends, self.left, self.probes = "notes", ends, 1, 0
        self.settings, self.is_left_out = Settings.model_validate({"mcpServers": {"notes": {"command": "x"}}}), False
        self.upstreams, self.parts = [self], SimpleNamespace(servers=SimpleNamespace(packages=self))
        self.state = ServerState("failing", "it is not started yet")
        self.known, self.may_answer = SimpleNamespace(latest=None), asyncio.Event()
        self.may_answer.set()

    async def facts(self) -> None:
        """Ask as a client does, which no longer waits for this server."""

    def fetching(self, server: str) -> str:
        return f"package-of-{server}" if self.left else ""

    async def settled(self) -> None:
        if not self.ends:
            await asyncio.Event().wait()
        self.left = 0

    def start_probe(self) -> asyncio.Task[None]:
        self.probes += 1
        return asyncio.create_task(self._probe())

    async def _probe(self) -> None:
        await self.may_answer.wait()
        self.known.latest = self


async def test_check_waits_for_a_package_and_says_which(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise the fetch would end with `check`, and no `check` would ever find the server."""
    gateway = Fetching(ends=True)
    assert await until_fetched(cast(Any, gateway), 1.0) == {}
    assert gateway.probes == 2 and not gateway.left, "the server is asked again once its package is there"
    assert "fetching package-of-notes for server notes" in capsys.readouterr().err
    endless = Fetching(ends=False)
    late = await until_fetched(cast(Any, endless), 1.0, 0.01)
    assert late == {"notes": "package-of-notes"}, "the wait is bounded"


@pytest.mark.parametrize(
    ("is_fetched", "line"),
    [
        (True, "fetching package-of-notes for server notes"),
        (False, "waiting for notes: each has 30 s to answer in each era of MCP"),
    ],
)
async def test_check_names_servers_that_are_late(is_fetched: bool, line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check waits for their answers, for longer than a client does: otherwise it would call good servers broken."""
    gateway = Fetching(ends=True)
    gateway.left = int(is_fetched)
    gateway.may_answer.clear()
    told, lines = asyncio.Event(), list[str]()

    def printed(label: str, what: str) -> None:
        lines.append(f"{label} {what}")
        told.set()

    monkeypatch.setattr("gateway.cli.check._err.print_labelled", printed)
    monkeypatch.setattr("gateway.cli.check._err.print_waiting", partial(printed, "waiting"))
    waiting = asyncio.create_task(until_fetched(cast(Any, gateway), 30.0, quiet_s=0.0))
    await asyncio.wait_for(told.wait(), 30)
    assert gateway.known.latest is None and not waiting.done()
    gateway.may_answer.set()
    assert await waiting == {} and gateway.known.latest is not None
    assert lines == [line], "once, and before the server answers"


def test_a_server_whose_package_is_fetched_is_no_error_of_the_doctor() -> None:
    found = servers._finding(cast(Any, Fetching(ends=False)), "package-of-notes", {})
    assert found.state == "warning" and "package-of-notes is being fetched" in found.what and "check" in found.do


def test_what_many_sandboxes_have_in_common_is_one_line() -> None:
    told = [(f"s{number}", "this kernel has no Landlock") for number in range(21)] + [("s0", "/etc: too much")]
    assert of_sandboxes(told) == [
        "sandbox s0, s1, s2 and 18 more: this kernel has no Landlock",
        "sandbox s0: /etc: too much",
    ]
