"""Live sessions of two replicas: filtered, sorted, counted and ended, by console, REST and command line."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, expect

from tests.operating.conftest import Cli, replica
from tests.operating.console_browser import signed_in
from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Legacy
from tests.support.redis_server import running_redis

KEYS_OF = {name: sha256(name) for name in ("ann", "bob")}


@pytest.fixture(scope="module")
def pair() -> Iterator[Sequence[RunningGateway]]:
    with (
        running_redis() as redis,
        replica(redis, api_keys=KEYS_OF) as one,
        replica(redis, api_keys=KEYS_OF) as other,
    ):
        yield one, other


@pytest.fixture(scope="module")
def clients(pair: Sequence[RunningGateway]) -> Iterator[dict[str, Legacy]]:
    """Three sessions of ann and bob on both replicas, one of which has failed, and one of which has called more."""
    with httpx.Client(timeout=30, headers=bearer("ann")) as ann, httpx.Client(timeout=30, headers=bearer("bob")) as bob:
        quiet = Legacy(f"{pair[0].base}/servers/probe/mcp", ann).open(name="quiet")
        failing = Legacy(f"{pair[1].base}/servers/probe/mcp", ann).open(name="failing")
        failing.tool("fail")
        eager = Legacy(f"{pair[0].base}/servers/demo/mcp", bob).open(name="eager")
        for _ in range(4):
            eager.tool("whoami")
        yield {"quiet": quiet, "failing": failing, "eager": eager}


def listed(gateway: RunningGateway, ops: httpx.Client, **params: str) -> Any:
    answer = ops.get(f"{gateway.base}/admin/api/sessions", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def names(page: Any) -> list[str]:
    return [row["client"].split()[0] for row in page["sessions"]]


@requirement("ops.session-list")
def test_each_replica_lists_what_a_filter_asks_for_in_its_order(
    pair: Sequence[RunningGateway], clients: dict[str, Legacy], ops: httpx.Client
) -> None:
    for gateway in pair:
        assert names(listed(gateway, ops, sort="calls")) == ["eager", "failing", "quiet"]
        assert names(listed(gateway, ops, sort="created", principal="api-key:ann")) == ["failing", "quiet"]
        assert names(listed(gateway, ops, server="demo")) == ["eager"]
        assert names(listed(gateway, ops, failing="true")) == names(listed(gateway, ops, only="failing")) == ["failing"]
        assert {*names(listed(gateway, ops, state="idle"))} == {*clients} and not names(
            listed(gateway, ops, state="busy")
        )
        totals = listed(gateway, ops)["totals"]
        assert (totals["sessions"], totals["states"], totals["failing"]) == (3, {"idle": 3}, 1)
        assert totals["calls"] == 5 and totals["failed"] == 1
        first = listed(gateway, ops, sort="calls", limit="2")
        assert names(listed(gateway, ops, sort="calls", after=first["after"])) == ["quiet"]
    for wrong in ({"state": "asleep"}, {"sort": "age"}, {"failing": "no"}, {"client": ""}):
        assert ops.get(f"{pair[0].base}/admin/api/sessions", params=wrong).status_code == 400


@requirement("ops.session-list")
def test_the_command_line_has_the_same_filters_and_prints_totals(
    pair: Sequence[RunningGateway], clients: dict[str, Legacy], cli: Cli
) -> None:
    text = cli("sessions", "list", "--principal", "api-key:ann", "--sort", "failures", url=pair[1].base).stdout
    assert "eager" not in text and text.index("failing") < text.index("quiet")
    assert "2 sessions: 2 idle, 1 with failures, calls 1, failed 1" in text
    found = json.loads(cli("sessions", "list", "--failing", "--json", url=pair[0].base).stdout)
    assert names(found) == ["failing"] and found["totals"]["sessions"] == 1
    assert cli("sessions", "list", "--state", "asleep", url=pair[0].base).returncode == 2


@requirement("ops.session-list", "ops.bulk-end")
def test_the_console_filters_sorts_and_ends_what_it_shows(
    pair: Sequence[RunningGateway], clients: dict[str, Legacy], ops: httpx.Client, context: BrowserContext
) -> None:
    page = signed_in(context, pair[1])
    page.goto(f"{pair[1].base}/admin/sessions")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(3)
    page.get_by_role("link", name="Calls", exact=True).click()
    expect(rows.first).to_contain_text("eager")
    expect(page.get_by_role("columnheader", name="Calls")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_text("End these sessions…")).to_have_count(0)
    page.locator("select[name=failing]").select_option("with failures")
    page.get_by_role("button", name="Find").click()
    expect(rows).to_have_count(1)
    expect(page.get_by_text("1 session of failing calls")).to_be_visible()
    page.get_by_text("End these sessions…").click()
    page.get_by_role("button", name="End all sessions of failing calls").click()
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    assert {*names(listed(pair[0], ops))} == {"quiet", "eager"}
