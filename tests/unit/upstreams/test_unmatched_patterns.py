"""`gateway.upstreams.unmatched_patterns`: one pattern that names nothing is enough to stop the start."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from gateway.config.settings import ConfigurationError, GatewaySettings
from gateway.config.upstreams import UpstreamSettings
from gateway.protocol.merged_lists import Tools
from gateway.upstreams.server_facts import ServerFacts
from gateway.upstreams.unmatched_patterns import CORRECT, compare, compare_late, unmatched
from tests.requirements import requirement

NO_SCHEMAS: Any = SimpleNamespace(unusable=lambda server, tools: {}, unchecked=lambda tools: {}, approved=lambda *_: [])


class Listing:
    """A server that has answered, with the tools `evaluate` and `read`."""

    name = "s"
    has_answered = True
    is_left_out = False

    def __init__(self, tools: Mapping[str, Any]) -> None:
        self.settings = UpstreamSettings.model_validate({"command": "x", "tools": tools})
        self.unreviewed = {"tools"}
        self.logs_first_answer = False
        self.answered = asyncio.Event()
        self.probed_tools = Tools([{"name": name, "inputSchema": {"type": "object"}} for name in ("evaluate", "read")])

    async def facts(self) -> ServerFacts:
        return ServerFacts(initialize=b"{}", tools=self.probed_tools)

    def mark_reviewed(self) -> None:
        self.unreviewed = set()

    def log_first_answer(self) -> None:
        self.logs_first_answer = True


class LeftOut(Listing):
    """A server that is never asked, because its entry has faults."""

    name = "left"
    has_answered = False
    is_left_out = True

    async def facts(self) -> ServerFacts:
        return ServerFacts(failure="left out")


def with_policy(**policy: Any) -> GatewaySettings:
    return GatewaySettings.model_validate({"policy": policy})


@requirement("task.make")
async def test_a_pattern_of_tasks_that_names_no_tool_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    server: Any = Listing({})
    patterns = ["s/read", "s__evaluate", "s/*", "*/read", "s__*", "*", "s/raed", "read", "t/read"]
    await compare([server], GatewaySettings.model_validate({"tasks": {"at_once": patterns}}), NO_SCHEMAS)
    told = [record.getMessage() for record in caplog.records]
    assert [text.split("'")[1] for text in told] == ["s/raed", "read", "t/read"], told
    assert all(text.startswith("gateway.tasks.at_once: ") for text in told)


@pytest.mark.parametrize(
    ("tools", "workspaces", "fault"),
    [
        ({"evalute": {"operation": "eval"}}, {}, "mcpServers.s.tools: 'evalute' names no tool"),
        ({}, {"w": {"tools": ["s__evalute"]}}, "workspaces.w.tools: 's__evalute' names no tool"),
        ({}, {"w": {"servers": ["t"]}}, "workspaces.w.servers: 't' names no server"),
    ],
)
async def test_one_pattern_that_names_nothing_is_refused(
    tools: dict[str, Any], workspaces: dict[str, Any], fault: str
) -> None:
    server: Any = Listing(tools)
    with pytest.raises(ConfigurationError) as refused:
        await compare([server], with_policy(workspaces=workspaces), NO_SCHEMAS)
    [found, what_to_do] = str(refused.value).splitlines()
    assert fault in found and what_to_do == CORRECT and server.unreviewed
    await compare([server], with_policy(workspaces=workspaces, unmatched_patterns="allow"), NO_SCHEMAS)
    assert not server.unreviewed


@pytest.mark.parametrize(("what", "listed"), [("prompt", "greet"), ("resource", "note://a")])
def test_the_message_has_the_names_that_there_are(what: str, listed: str) -> None:
    [message] = unmatched("mcpServers.s", ["wrong*"], [listed], what)
    assert message == f"mcpServers.s: 'wrong*' names no {what} that the server lists: {listed!r}"
    assert unmatched("mcpServers.s", ["wrong*"], [], what)[0].endswith("it has none")
    assert unmatched("mcpServers.s", ["*"], [], what) == []


@requirement("pol.late-patterns")
async def test_a_server_that_comes_late_is_compared_when_it_answers(caplog: pytest.LogCaptureFixture) -> None:
    good = {"read": {"operation": "read"}, "eval*": {"operation": "eval"}, "*": {"operation": "write"}}
    servers: Any = [Listing({"evalute": {"operation": "eval"}}), Listing(good)]
    for server in servers:
        server.has_answered = False
    settings = with_policy(workspaces={"w": {"servers": ["s"], "tools": ["s__evalute", "s__read", "s__*"]}})
    await compare(servers, settings, NO_SCHEMAS)
    comparing = asyncio.create_task(compare_late(servers, settings, NO_SCHEMAS))
    servers[1].answered.set()
    servers[0].answered.set()
    async with asyncio.timeout(60):
        await comparing
    assert [server.logs_first_answer for server in servers] == [True, True]
    assert servers[0].unreviewed and not servers[1].unreviewed
    named = [line for line in caplog.text.splitlines() if "names no" in line]
    assert len(named) == 2 and "mcpServers.s.tools: 'evalute' names no tool" in named[0]
    assert "workspaces.w.tools: 's__evalute' names no tool" in named[1], "once all have answered"


@requirement("pol.late-patterns", "ops.partial")
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_server_that_is_left_out_hinders_no_review(is_late: bool, caplog: pytest.LogCaptureFixture) -> None:
    server: Any = Listing({})
    server.has_answered = not is_late
    upstreams: Any = [server, LeftOut({"evalute": {"operation": "eval"}})]
    good = ["left__a", "left__*", "l*__a", "*__a", "*a", "s__read"]
    workspaces = {"w": {"servers": ["s", "left"], "tools": [*good, "s__evalute", "lef__*"]}}
    settings = GatewaySettings.model_validate(
        {
            "policy": {"workspaces": workspaces, "unmatched_patterns": "allow"},
            "tasks": {"at_once": ["left/a", "left__a", "*/a", "s/raed"]},
        }
    )
    server.answered.set()
    async with asyncio.timeout(60):
        await compare(upstreams, settings, NO_SCHEMAS)
        await compare_late(upstreams, settings, NO_SCHEMAS)
    told = [record.getMessage() for record in caplog.records if "names no" in record.getMessage()]
    assert [text.split("'")[1] for text in told] == ["s__evalute", "lef__*", "s/raed"], told
    assert "server left has not answered" not in caplog.text and not upstreams[1].logs_first_answer
