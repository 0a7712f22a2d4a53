"""One bad server harms nobody: neither one that fails, hangs or is late, nor one whose answers cannot be read."""

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import bearer, sha256
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import Legacy, Modern, messages, tool_text
from tests.support.scripted_http_server import running_http_probe
from tests.support.table_server import EXITS, GOOD, TOKEN, table_server
from tests.support.waiting import eventually

MISSING = "io.github.mcp-session-gateway/missing"
START_S = 30.0
"""What a server has to start, if no setting has another time."""
OPERATOR = "an operator's key of these tests"
PLAIN = "correct horse battery"
USAGE = "Usage: bad_server [options]"
CRASHES = [["stderr", "Traceback:"], ["stderr", f"ValueError: {TOKEN} is of no use"], ["exit", 7]]


def answering(answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A good server but for these answers."""
    return table_server(GOOD | {"answers": GOOD["answers"] | answers}, **more)


def missing_of(result: Any) -> dict[str, dict[str, Any]]:
    """The servers that a result says it comes without."""
    return {entry["server"]: entry for entry in (result.get("_meta") or {}).get(MISSING, [])}


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningGateway, Path]]:
    """A gateway whose servers fail in seconds. The server `later` is that of the table in the file."""
    later = tmp_path_factory.mktemp("bad") / "later"
    later.write_text(json.dumps(EXITS))
    refuses = GOOD | {"first": [["stderr", "unrecognized arguments: @ARGV"], ["exit", 3]]}
    given = ("--token", "the first of three", "${ACCOUNT_ACCESS_KEY}", "--db=x?api_key=the_third")
    servers = {
        "good": table_server(GOOD),
        "later": table_server(later),
        "exit": table_server(EXITS),
        "refuse": table_server(refuses, *given),
        "usage": table_server(GOOD | {"first": [["stdout", USAGE], ["sleep", 600]]}),
        "banner": table_server(GOOD | {"first": [["stdout", "*** Welcome ***"], ["stdout", "listening on stdio"]]}),
        "crash": answering({"tools/call": CRASHES}),
        "crowd": answering({"tools/call": CRASHES}, shared=True),
    }
    limits = {"start_timeout_s": 12.0, "list_timeout_s": 1.0, "shutdown_grace_s": 0.2}
    keys = {"olga": sha256(OPERATOR)}
    options = {"limits": limits, "admin": {"keys": keys}}
    with running_gateway(servers, options=options, env={"ACCOUNT_ACCESS_KEY": PLAIN}) as gateway:
        yield gateway, later


def of(gateway: RunningGateway, name: str, http: httpx.Client) -> Legacy:
    return Legacy(gateway.url.replace("/mcp", f"/servers/{name}/mcp"), http)


def error_of(response: httpx.Response) -> str:
    return str(messages(response)[-1]["error"]["message"])


@requirement("proc.garbage", "proc.last-words")
def test_a_program_that_is_no_server_is_given_up_in_seconds_with_the_line_it_wrote(
    failing: tuple[RunningGateway, Path], http: httpx.Client
) -> None:
    gateway, _ = failing
    began = time.monotonic()
    told = error_of(of(gateway, "usage", http).initialize())
    assert "not MCP messages, and did not answer within 2 s" in told and USAGE in told
    assert time.monotonic() - began < START_S, "nobody waits for the time that a server has to start"
    banner = of(gateway, "banner", http).open()
    assert [tool["name"] for tool in messages(banner.call("tools/list"))[-1]["result"]["tools"]] == ["who"]


@requirement("proc.last-words", "ops.redact")
def test_an_error_has_the_last_line_of_the_clients_own_process_without_credentials(
    failing: tuple[RunningGateway, Path], http: httpx.Client
) -> None:
    gateway, _ = failing
    told = error_of(of(gateway, "exit", http).initialize())
    assert "exited with code 3" in told and "its last output: 'token [redacted] was refused'" in told
    refused = error_of(of(gateway, "refuse", http).initialize())
    assert "unrecognized arguments: --token [redacted] [redacted] --db=x?api_key=[redacted]" in refused
    crashed = error_of(of(gateway, "crash", http).open().tool("who"))
    assert "exited with code 7" in crashed and "ValueError: [redacted] is of no use" in crashed
    of_others = error_of(of(gateway, "crowd", http).open().tool("who"))
    assert "exited with code 7" in of_others and "ValueError" not in of_others
    assert "could not open the database" in gateway.stderr() and TOKEN not in gateway.stderr()
    assert PLAIN not in gateway.stderr() and "the first of three" not in gateway.stderr()


@requirement("proc.last-words", "ops.redact")
def test_operators_see_which_servers_cannot_be_used_and_what_they_wrote(
    failing: tuple[RunningGateway, Path], http: httpx.Client
) -> None:
    gateway, _ = failing
    key = bearer(OPERATOR)

    def unavailable() -> dict[str, Any]:
        replicas = http.get(f"{gateway.base}/admin/api/replicas", headers=key).json()
        return {entry["server"]: entry for entry in replicas[0]["unavailable"]}

    assert eventually(lambda: not {"good", "banner", "crash"} & {*unavailable()}), "they are up"
    assert eventually(lambda: all(unavailable()[name]["attempts"] for name in ("exit", "usage")))
    found = unavailable()
    assert found["exit"]["state"] == "failing" and found["exit"]["attempts"] >= 1
    assert found["exit"]["output"] == [
        "could not open the database: db_password=[redacted]",
        "token [redacted] was refused",
    ]
    assert f"(stdout) {USAGE}" in found["usage"]["output"]
    page = http.get(f"{gateway.base}/admin", headers=key).text
    assert "Servers that cannot be used" in page and "could not open the database" in page and TOKEN not in page
    metrics = http.get(f"{gateway.base}/metrics", headers=key).text
    assert 'mcp_gateway_server_up{server="exit"} 0.0' in metrics
    assert 'mcp_gateway_server_up{server="good"} 1.0' in metrics


@requirement("proc.backoff", "proc.late")
def test_a_server_that_failed_is_tried_again_and_those_who_missed_it_are_notified(
    failing: tuple[RunningGateway, Path], http: httpx.Client
) -> None:
    gateway, file = failing
    legacy, modern = Legacy(gateway.url, http).open(), Modern(gateway.url, http)

    def listed_now() -> Any:
        return messages(legacy.call("tools/list"))[-1]["result"]

    # A list waits a few seconds for servers: on a busy machine they have not failed by then.
    assert eventually(lambda: "exited with code 3" in missing_of(listed_now())["later"]["reason"])
    listed = listed_now()
    missing = missing_of(listed)
    assert {"later", "exit", "usage"} <= {*missing}
    later = missing["later"]
    assert 0 <= later["retryAfterMs"] <= 60_000
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", later["since"])
    assert TOKEN not in str(listed)
    sessionless = messages(modern.send("tools/list"))[-1]["result"]
    assert sessionless["ttlMs"] == 0 and "later" in missing_of(sessionless)
    file.write_text(json.dumps(GOOD))
    with legacy.get() as stream:
        for line in stream.iter_lines():
            if "notifications/tools/list_changed" in line:
                listed = messages(legacy.call("tools/list"))[-1]["result"]
                if "later__who" in [tool["name"] for tool in listed["tools"]]:
                    break
    assert "later" not in missing_of(listed)
    assert eventually(lambda: "later" not in missing_of(messages(modern.send("tools/list"))[-1]["result"]))


@requirement("spec.sessionless-lists", "proc.late")
def test_it_is_reduced_by_policy_and_names_no_hidden_server(http: httpx.Client) -> None:
    servers = {"one": table_server(GOOD), "two": table_server(GOOD), "hidden": table_server(EXITS)}
    keys, colours = {name: sha256(name) for name in ("ann", "bob")}, {"ann": "red", "bob": "blue"}
    rules = [{"principals": [f"api-key:{name}"], "workspace": colour} for name, colour in colours.items()]
    policy = {"rules": rules, "workspaces": {"red": {"servers": ["one", "hidden"]}, "blue": {"servers": ["two"]}}}
    with in_process_gateway(servers, options={"api_keys": keys, "policy": policy}) as gateway:
        found = {}
        for name in keys:
            client = Modern(gateway.url, http, headers=bearer(name))
            answer = client.send("tools/list")
            assert "mcp-gateway-session" not in answer.headers, "no session was opened"
            result = messages(answer)[-1]["result"]
            found[name] = [tool["name"] for tool in result["tools"]], [*missing_of(result)]
        assert found == {"ann": (["one__who"], ["hidden"]), "bob": (["two__who"], [])}


# -- answers of servers that cannot be read


NAMED = [
    '{"jsonrpc":"2.0","id":ID,"result":DEEP}',
    '{"result":DEEP,"jsonrpc":"2.0","id":ID}',
    '{"jsonrpc":"2.0","id":ID,"result":{"x":NaN}}',
    '{"jsonrpc":"2.0","id":ID,"result":{"text":"\xff"}}',
    '{"jsonrpc":"2.0","id":ID,"result":{"cut',
    '{"jsonrpc":"2.0","id":ID}',
    '{"jsonrpc":"2.0","id":ID,"result":[1]}',
]
NAMELESS = ['{"jsonrpc":"2.0","result":{"x":DEEP}}', '{"jsonrpc":"2.0","id":"ID","result":DEEP}']


def failed(answer: Any, code: int = -32014) -> bool:
    error = answer["error"]
    return error["code"] == code and "cannot be read" in error["message"]


@requirement("rep.honest", "proc.noise")
@pytest.mark.parametrize("line", [*NAMED, *NAMELESS])
def test_a_process_that_answers_unreadably_fails_its_call_at_once(
    probe: RunningGateway, http: httpx.Client, line: str
) -> None:
    for client in (Legacy(probe.at("probe"), http).open(), Modern(probe.at("probe"), http)):
        began = time.monotonic()
        assert failed(messages(client.tool("broken", {"line": line}))[-1])
        assert time.monotonic() - began < 5
        assert tool_text(client.tool("echo", {"a": 1})) == '{"a": 1}'


@requirement("rep.honest")
@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_a_server_behind_a_url_that_answers_unreadably_fails_its_call_at_once(http: httpx.Client, kind: str) -> None:
    with running_http_probe() as remote, in_process_gateway({"remote": {"url": remote.url}}) as gateway:
        client = Legacy(gateway.url, http).open()
        for line in (*NAMED[:3], *NAMED[4:6], *NAMELESS):
            began = time.monotonic()
            answer = messages(client.tool("broken", {"line": line, "kind": kind}))[-1]
            assert answer["error"]["code"] == -32014, answer
            assert time.monotonic() - began < 5
        assert tool_text(client.tool("echo", {"text": "hi"})) == "hi"
