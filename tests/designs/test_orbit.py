"""ORBIT: an agent announces its workspace once, and every tool that needs a workspace gets it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.designs.agents import Open, example, failed_text, opener, serving, text_of, tools_of
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway
from tests.support.waiting import eventually

NESTED, DOTTED = {"orbit": {"workspace": "w-red"}}, {"orbit.workspace": "w-red"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[RunningGateway]:
    with serving(example("orbit")) as running:
        yield running


@pytest.fixture
def start(gateway: RunningGateway, http: httpx.Client) -> Open:
    return opener(gateway, http)


@requirement("ctx.announce", "ctx.bind", "ctx.isolated")
def test_each_agent_works_in_the_workspace_that_it_announced(start: Open) -> None:
    red, blue = start(meta=NESTED), start(meta={"orbit": {"workspace": "w-blue"}})
    for _ in range(2):
        assert text_of(red.tool("list_documents")) == "plan.md"
        assert text_of(blue.tool("list_documents")) == "notes.md, todo.md"
    assert tools_of(red)["list_documents"]["inputSchema"].get("required", []) == []


@requirement("ctx.announce")
def test_the_other_spelling_says_the_same(start: Open) -> None:
    assert text_of(start(meta=DOTTED).tool("list_documents")) == "plan.md"


@requirement("ctx.bind", "ctx.correlation-right")
def test_what_an_agent_says_in_a_call_wins_and_is_told(start: Open) -> None:
    agent = start(meta=NESTED)
    assert text_of(agent.tool("list_documents", {"workspace_id": "w-blue"})) == "notes.md, todo.md"
    assert text_of(agent.tool("list_documents", {"workspace_id": ""})) == "plan.md", "empty is not given"

    def told() -> list[str]:
        differs = "argument workspace_id is 'w-blue', the session's workspace is 'w-red'"
        return [line for line in agent.log().splitlines() if differs in line]

    assert eventually(lambda: bool(told()))
    assert all("info" in line and "server=orbit" in line and "tool=list_documents" in line for line in told())


@requirement("ctx.announce", "ctx.bind")
@pytest.mark.parametrize("meta", [None, {"orbit": {"workspace": ""}}, {"orbit.workspace": ""}], ids=str)
def test_without_a_workspace_the_error_names_the_argument(meta: Any, start: Open) -> None:
    agent = start(meta=meta)
    assert "workspace_id" in failed_text(agent.tool("list_documents"))
    assert text_of(agent.tool("list_documents", {"workspace_id": "w-red"})) == "plan.md"
