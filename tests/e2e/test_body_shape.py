"""A body costs what its bytes cost, whatever it is made of; and nothing of it is read for a stranger."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, RunningGateway, running_gateway, server
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, error_of, modern_body, modern_headers, tool_text
from tests.support.stdio_server import text, tools
from tests.support.table_server import table_server

JSON: Final = {**ACCEPT, "Content-Type": "application/json"}
NESTED: Final = "[" + ",".join(["[" * 200 + "]" * 200] * 9_500) + "]"
EMPTY: Final = "[" + ",".join(["{}"] * 350_000) + "]"

SHAPES: Final = {
    "era": "legacy",
    "answers": {
        "tools/list": tools("small", "large"),
        "tools/call small": text("small"),
        "tools/call large": [
            ["stdout", f'{{"jsonrpc":"2.0","id":@ID,"result":{{"content":[],"structuredContent":{{"a":{NESTED}}}}}}}']
        ],
    },
}


def call(arguments: str = "{}", meta: str = "{}") -> bytes:
    params = f'{{"name":"count","arguments":{arguments},"_meta":{meta}}}'
    return f'{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{params}}}'.encode()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """Its processor time is measured."""
    table: Path = tmp_path_factory.mktemp("shapes") / "shapes.json"
    table.write_text(json.dumps(SHAPES))
    servers = {"demo": server(DEMO), "shapes": table_server(table)}
    with running_gateway(servers, options={"api_keys": {name: sha256(key) for name, key in KEYS.items()}}) as running:
        yield running


@requirement("wall.structure", "wall.order")
@pytest.mark.parametrize("credential", [{}, {"Authorization": "Bearer wrong"}])
@pytest.mark.parametrize("body", [b"{", call(NESTED[: 400 * 150 - 1] + "]"), b"[" * 60_000])
def test_a_strangers_body_is_not_read(
    gateway: RunningGateway, http: httpx.Client, credential: dict[str, str], body: bytes
) -> None:
    """The answer is the same whatever the body is: nobody has looked at it."""
    for path in ("/mcp", "/servers/demo/mcp"):
        plain = http.post(gateway.base + path, content=call(), headers={**JSON, **credential})
        answer = http.post(gateway.base + path, content=body, headers={**JSON, **credential})
        assert answer.status_code == plain.status_code == 401
        assert answer.json()["id"] is plain.json()["id"] is None
        assert answer.json()["error"]["message"] == plain.json()["error"]["message"]
        assert answer.headers["www-authenticate"] == plain.headers["www-authenticate"]


@requirement("wall.structure")
@pytest.mark.parametrize("shape", [NESTED, EMPTY], ids=["nested", "empty objects"])
def test_a_body_of_too_many_parts_is_refused_with_its_reason(
    gateway: RunningGateway, http: httpx.Client, shape: str
) -> None:
    legacy = Legacy(gateway.base + "/servers/demo/mcp", http, headers=bearer(KEYS["alice"])).open()
    headers = {**JSON, **legacy.request_headers()}
    for body in (call(f'{{"a":{shape}}}'), call(meta=f'{{"a":{shape}}}'), b"[" + call(f'{{"a":{shape}}}') + b"]"):
        answer = http.post(legacy.url, content=body, headers=headers)
        assert answer.status_code == 400, answer.text
    answer = http.post(legacy.url, content=call(f'{{"a":{shape}}}'), headers=headers)
    assert "32768 arrays, objects and members" in answer.json()["error"]["message"]
    large = call(meta='{"b":[' + ",".join(["{}"] * 1_100) + "]}")
    answer = http.post(legacy.url, content=large, headers=headers)
    assert answer.json()["error"]["code"] == -32602 and "params._meta" in answer.json()["error"]["message"]
    assert answer.json()["id"] == 7
    assert tool_text(legacy.tool("count")) == "1", "nothing of it was executed"


@requirement("wall.structure")
def test_a_servers_answer_of_too_many_parts_fails_its_call_alone(gateway: RunningGateway, http: httpx.Client) -> None:
    for client in (
        Legacy(gateway.base + "/servers/shapes/mcp", http, headers=bearer(KEYS["alice"])).open(),
        Modern(gateway.base + "/servers/shapes/mcp", http, headers=bearer(KEYS["alice"])),
    ):
        error: Any = error_of(client.tool("large"))
        assert "arrays, objects and members" in error["message"], error
        assert tool_text(client.tool("small")) == "small"


@requirement("wall.structure", "pol.limits")
def test_rates_weigh_bytes(http: httpx.Client) -> None:
    """4 MiB are 64 tokens: a principal with 100 sends one such body, and still small ones."""
    options = {
        "api_keys": {name: sha256(key) for name, key in KEYS.items()},
        "policy": {"principal_rate": {"per_s": 0.01, "burst": 100}},
    }
    with in_process_gateway({"demo": server(DEMO)}, options=options) as running:
        client = Modern(running.url, http, headers=bearer(KEYS["alice"]))
        large = {"text": "x" * 4_000_000}
        assert client.tool("count", large).status_code == 200
        refused = client.tool("count", large)
        assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
        assert client.tool("count").status_code == 200
        assert Modern(running.url, http, headers=bearer(KEYS["bob"])).tool("count", large).status_code == 200


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@pytest.mark.alone
@requirement("wall.structure", "wall.bystander")
def test_a_hostile_shape_costs_no_more_than_its_bytes(gateway: RunningGateway, http: httpx.Client) -> None:
    """Processor time of the gateway for 4 MB of one text, and for as many bytes of every shape that was found."""
    process, headers = psutil.Process(gateway.pid), bearer(KEYS["alice"])
    plain_text = '{"text":"' + "x" * len(NESTED) + '"}'

    def took(arguments: str = "{}", meta: str | None = None) -> float:
        body = modern_body("tools/call", {"name": "demo__count", "arguments": {}})
        sent = httpx.Request("POST", gateway.url, json=body, headers={**JSON, **modern_headers(body), **headers})
        raw = sent.content.replace(b'"arguments":{}', b'"arguments":' + arguments.encode())
        if meta is not None:
            raw = raw.replace(b'"_meta":{', b'"_meta":{"x":' + meta.encode() + b",")
        given = {name: value for name, value in sent.headers.items() if name not in ("content-length", "host")}
        begin = cpu_s(process)
        for _ in range(10):
            assert http.post(gateway.url, content=raw, headers=given).status_code in (200, 400)
        return cpu_s(process) - begin

    took()
    plain = took(plain_text)
    for name, spent in {
        "nested": took(f'{{"a":{NESTED}}}'),
        "empty objects": took(f'{{"a":{EMPTY}}}'),
        "nested in _meta": took(meta=NESTED),
        "empty objects in _meta": took(meta=EMPTY),
    }.items():
        assert spent <= 2 * plain, f"{name}: {spent:.2f} s for ten, where a text takes {plain:.2f} s"
