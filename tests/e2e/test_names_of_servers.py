"""Which names servers have is known to those who see the servers, and to nobody else."""

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest

from tests.requirements import requirement
from tests.support.credentials import KEYS, bearer, sha256
from tests.support.gateway_process import DEMO, RunningGateway, server
from tests.support.in_process_gateway import InProcessGateway, in_process_gateway
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, modern_body, modern_headers, tool_text

SERVERS: Final = {"seen-one": server(DEMO), "hidden": server(DEMO, direct_only=True)}
RULES: Final = [{"principals": ["api-key:bob"], "trust": "sandboxed"}]
_TELLING: Final = frozenset({"content-length", "date", "mcp-session-id", "mcp-gateway-session", "set-cookie"})
"""Headers that differ with each request. Of which there is one is compared."""
_RANDOM: Final = re.compile(r'"(correlation_id|io\\.github\\.mcp-session-gateway/[a-z]+)":"[^"]*"')


@pytest.fixture(scope="module")
def gateway() -> Iterator[InProcessGateway]:
    keys = {name: sha256(key) for name, key in KEYS.items()}
    options = {"api_keys": keys, "policy": {"rules": RULES}, "sse": True}
    with in_process_gateway(SERVERS, options=options) as running:
        yield running


def told(answer: httpx.Response) -> Any:
    headers = {name: "" if name in _TELLING else value for name, value in answer.headers.items()}
    return answer.status_code, headers, _RANDOM.sub("", answer.text)


def answers(base: str, name: str, http: httpx.Client, headers: dict[str, str]) -> Iterator[Any]:
    """What is told to whoever sends these headers to the URL of that server."""
    url = f"{base}/servers/{name}/mcp"
    for method in ("GET", "DELETE", "OPTIONS", "PUT"):
        yield method, told(http.request(method, url, headers=headers))
    yield "text", told(http.post(url, content=b"x", headers={"Content-Type": "text/plain", **headers}))
    yield (
        "broken",
        told(http.post(url, content=b"{", headers={**ACCEPT, "Content-Type": "application/json", **headers})),
    )
    yield "host", told(http.post(url, json={}, headers={**ACCEPT, "Host": "evil.example", **headers}))
    for path in ("sse", "sse/messages", "mcp/", "other"):
        yield path, told(http.post(f"{base}/servers/{name}/{path}", json={}, headers={**ACCEPT, **headers}))
    status, fields, page = told(http.get(url, headers={"Accept": "text/html", **headers}))
    yield "page", (status, fields, page.replace(name, "NAME"))  # it repeats its own address
    legacy = Legacy(url, http, headers=headers)
    yield "initialize", told(legacy.initialize())
    legacy.session = ""
    modern: list[tuple[str, Any]] = [
        ("server/discover", {}),
        ("tools/list", {}),
        ("prompts/list", {}),
        ("resources/list", {}),
        ("resources/templates/list", {}),
        ("tools/call", {"name": "count", "arguments": {}}),
        ("prompts/get", {"name": "introduce"}),
        ("resources/read", {"uri": "note://one"}),
        ("completion/complete", {"ref": {"type": "ref/prompt", "name": "a"}, "argument": {"name": "a", "value": ""}}),
        ("com.example/method", {}),
    ]
    for method, params in modern:
        body = modern_body(method, params)
        yield method, told(http.post(url, json=body, headers={**modern_headers(body), **headers}))


@requirement("wall.order", "pol.trust")
@pytest.mark.parametrize("who", ["nobody", "a wrong key", "a guest"])
def test_a_server_that_may_not_be_seen_and_one_that_is_not_there_answer_alike(
    gateway: InProcessGateway, http: httpx.Client, who: str
) -> None:
    headers = {"nobody": {}, "a wrong key": {"Authorization": "Bearer wrong"}, "a guest": bearer(KEYS["bob"])}[who]
    hidden = dict(answers(gateway.base, "hidden", http, headers))
    absent = dict(answers(gateway.base, "absent", http, headers))
    different = {what for what in hidden if hidden[what] != absent[what]}
    assert not different, {what: (hidden[what], absent[what]) for what in sorted(different)}
    if who != "a guest":
        seen = dict(answers(gateway.base, "seen-one", http, headers))
        assert seen == absent
        assert hidden["initialize"][0] == 401


@requirement("wall.order")
def test_who_sees_a_server_is_served_and_an_open_gateway_says_what_is_not_there(
    gateway: InProcessGateway, demo: RunningGateway, http: httpx.Client
) -> None:
    client = Modern(f"{gateway.base}/servers/hidden/mcp", http, headers=bearer(KEYS["alice"]))
    assert tool_text(client.tool("count")) == "1"
    assert http.post(demo.at("absent"), json={}, headers=ACCEPT).status_code == 404


@requirement("wall.order")
@pytest.mark.parametrize("name", ["$(id)", "-x", "a;b", "a b", "<b>"])
def test_a_page_for_people_repeats_no_name_that_no_server_can_have(
    gateway: InProcessGateway, http: httpx.Client, name: str
) -> None:
    answer = http.get(f"{gateway.base}/servers/{quote(name)}/mcp", headers={"Accept": "text/html"})
    assert answer.status_code == 404 and name not in answer.text
