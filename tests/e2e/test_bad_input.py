"""Whatever a client sends, it gets a documented answer and no other session is harmed."""

import functools
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.requirements import requirement
from tests.support.credentials import API_KEYS, KEYS, bearer, sha256
from tests.support.documented_errors import STATUSES
from tests.support.gateway_process import DEMO, RunningGateway, operators_of, running_gateway, server
from tests.support.http_bytes import answers, listener_of
from tests.support.in_process_gateway import in_process_gateway
from tests.support.mcp_clients import ACCEPT, Legacy, Modern, error_of, modern_body, modern_headers, tool_text
from tests.support.stdio_server import text, tools
from tests.support.table_server import table_server
from tests.support.too_deep import TOO_DEEP

DOCUMENTED = {200, 202, 400, 401, 403, 404, 405, 406, 409, 413, 415, 421, 429, 431, 508}
JSON_HEADERS = {**ACCEPT, "Content-Type": "application/json"}


@pytest.fixture
def bystander(demo: RunningGateway, http: httpx.Client) -> Legacy:
    """A session that minds its own business."""
    client = Legacy(demo.url, http).open()
    assert tool_text(client.tool("count")) == "1"
    return client


def unharmed(bystander: Legacy) -> bool:
    return int(tool_text(bystander.tool("count"))) >= 2


def documented(answer: httpx.Response) -> None:
    """A status of the tables, and a JSON-RPC body wherever there is one."""
    assert answer.status_code in DOCUMENTED, answer.text
    assert "Traceback" not in answer.text and "msgspec" not in answer.text
    if answer.headers.get("content-type") == "application/json":
        body = answer.json()
        for part in body if isinstance(body, list) else [body]:
            assert part["jsonrpc"] == "2.0" and ("result" in part or part["error"]["message"])
            code = part.get("error", {}).get("code")
            assert code not in STATUSES or answer.status_code in STATUSES[code], answer.text


@requirement("spec.legacy")
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"\xff\xfe\x00", 400),
        (TOO_DEEP, 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":[1]}', 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"m","params":{"_meta":7}}', 400),
        (b'"' + b"x" * (5 << 20) + b'"', 413),
    ],
    ids=["empty", "no text", "too deep", "params", "_meta", "too large"],
)
def test_bodies_that_are_no_message(demo: RunningGateway, bystander: Legacy, body: bytes, status: int) -> None:
    for headers in (JSON_HEADERS, {**JSON_HEADERS, "Mcp-Session-Id": bystander.session}):
        for content in (body, iter([body])):  # the second one does not say its length
            with httpx.Client(timeout=20) as http:
                answer = http.post(demo.url, content=content, headers=headers)
            documented(answer)
            assert answer.status_code == status, answer.text
    assert unharmed(bystander)


@requirement("spec.legacy", "spec.modern")
def test_header_injection_and_doubled_headers(demo: RunningGateway, http: httpx.Client, bystander: Legacy) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for name in ("Mcp-Session-Id", "MCP-Gateway-Session", "Authorization", "Origin"):
        doubled = [*JSON_HEADERS.items(), (name, "one"), (name, bystander.session)]
        assert http.post(demo.url, json=body, headers=doubled).status_code == 400
    address = ("127.0.0.1", int(demo.base.rpartition(":")[2]))
    for value in ("x\rSet-Cookie: a=b", "x\nSet-Cookie: a=b", "x\0y"):
        with socket.create_connection(address, timeout=60) as raw:
            raw.sendall(f"POST /mcp HTTP/1.1\r\nHost: localhost\r\nMcp-Session-Id: {value}\r\n\r\n".encode())
            assert b"a=b" not in raw.recv(4096)
    for value in ("x" * 8_000, "caf\u00e9", "a=b; mcp_session_id=x; mcp_session_id=y"):
        cookie = [(b"Cookie", value.encode("latin-1"))]
        call = modern_body("tools/call", {"name": "whoami"})
        sent = [(name.encode(), text.encode()) for name, text in modern_headers(call).items()]
        answer = http.post(demo.url, json=call, headers=[*sent, *cookie])
        documented(answer)
        assert answer.status_code == 200 and "a=b" not in str(answer.headers)
    many = {**JSON_HEADERS, **{f"X-{n}": "y" * 1_000 for n in range(80)}}
    assert http.post(demo.url, json=body, headers=many).status_code == 431
    assert unharmed(bystander)


VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50) | st.just([]) | st.just({})
)


@st.composite
def mutated(draw: st.DrawFn) -> tuple[Any, dict[str, str], bool]:
    """A valid request of either era, with a few things about it changed."""
    legacy = draw(st.booleans())
    method = draw(st.sampled_from(["tools/call", "tools/list", "resources/read", "ping", "server/discover"]))
    params = {"name": draw(st.sampled_from(["whoami", "count", "ask"])), "arguments": {}, "uri": "demo://session"}
    body = modern_body(method, params)
    headers = modern_headers(body)
    if legacy:
        body["params"].pop("_meta")
        headers = {**ACCEPT, "MCP-Protocol-Version": "2025-11-25"}
    for _ in range(draw(st.integers(1, 4))):
        target = draw(st.sampled_from([body, body.get("params"), (body.get("params") or {}).get("_meta")]))
        if isinstance(target, dict) and target:
            key = draw(st.sampled_from(sorted(target)))
            if draw(st.booleans()):
                target[key] = draw(VALUES)
            else:
                del target[key]
        if not isinstance(body.get("params"), dict):
            break
    names = draw(st.lists(st.sampled_from(sorted(headers)), max_size=2))
    for name in names:
        headers[name] = draw(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40)).strip()
    return body, headers, legacy


@requirement("spec.legacy", "spec.modern")
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=mutated(), cut=st.integers(0, 400) | st.none())
def test_mutations_of_valid_requests(
    tormented: "Tormented", case: tuple[Any, dict[str, str], bool], cut: int | None
) -> None:
    body, headers, legacy = case
    content = json.dumps(body).encode()
    client = tormented
    if legacy:
        headers["Mcp-Session-Id"] = client.session.session
    sent = {**headers, "Content-Type": "application/json"}
    answer = client.http.post(client.url, content=content if cut is None else content[:cut], headers=sent)
    documented(answer)
    assert tool_text(client.bystander.tool("whoami")) == client.facts


class Tormented:
    """A connection, a session to torment and one that must not notice."""

    def __init__(self, url: str, http: httpx.Client) -> None:
        self.url = url
        self.http = http
        self.session = Legacy(url, http).open()
        self.bystander = Legacy(url, http).open()
        self.facts = tool_text(self.bystander.tool("whoami"))


@pytest.fixture(scope="module")
def tormented() -> Iterator[Tormented]:
    """At a gateway that serves nobody else: all that it logs is looked at."""
    with in_process_gateway() as gateway, httpx.Client(timeout=20) as http:
        yield Tormented(gateway.url, http)
        assert "Traceback" not in gateway.stderr(), gateway.stderr()


# -- messages and hosts that are refused, and what a stranger's body costs


@requirement("wall.authority")
@pytest.mark.parametrize("version", ["2020-01-01", "nonsense", "", "2025-11-25, 2025-11-25"])
def test_a_delete_or_get_of_an_unknown_version_ends_and_opens_nothing(
    demo: RunningGateway, http: httpx.Client, version: str
) -> None:
    client = Legacy(demo.url, http).open()
    named = {**client.request_headers(), "Accept": "text/event-stream", "MCP-Protocol-Version": version}
    assert http.delete(demo.url, headers=named).status_code == 400
    assert http.get(demo.url, headers=named).status_code == 400
    assert tool_text(client.tool("count")) == "1", "it lives"
    assert client.delete().status_code == 200


# -- a large body is read from callers who may call, and from nobody else


HEAD = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nAccept: {ACCEPT['Accept']}\r\n"


@requirement("wall.before-auth")
@pytest.mark.parametrize("credential", ["", "Authorization: Bearer wrong\r\n"])
def test_a_stranger_is_refused_before_a_large_body_is_read(keyed: RunningGateway, credential: str) -> None:
    declared = f"{HEAD}{credential}Content-Length: 4000000\r\n\r\n".encode()
    heard = answers(listener_of(keyed.url), [declared, b"x" * 1_024], expected=1)
    assert heard.statuses == [401], "the rest of the body was not waited for"

    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    undeclared = f"{HEAD}{credential}Transfer-Encoding: chunked\r\n\r\n".encode()
    heard = answers(listener_of(keyed.url), [undeclared, chunk, chunk], expected=1)
    assert heard.statuses == [401], "the end of the body was not waited for"


# -- names under which a gateway is asked for


NAMES = ["mcp.example", "*.pages.example", "[2001:db8::1]"]


STRANGE = ["evil.example", "pages.example", "evilpages.example", "mcp.example.evil.example", "127.0.0.1", "[::1]", "*"]


@requirement("wall.defaults", "spec.origin")
def test_a_page_that_has_its_name_point_here_is_not_served(http: httpx.Client) -> None:
    options = {"host": "0.0.0.0", "anonymous": True, "allowed_hosts": NAMES}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as gateway:
        port = gateway.base.rpartition(":")[2]
        for name in STRANGE:
            host = f"{name}:{port}"
            # What a browser sends after rebinding: to it the page and the gateway are of one origin.
            rebound = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
            refused = Legacy(gateway.url, http, headers=rebound).initialize()
            assert refused.status_code == 421 and "allowed_hosts" in refused.text, name
        for name in ("mcp.example", "MCP.example", "a.pages.example", "a.b.pages.example", "[2001:db8::1]"):
            assert Legacy(gateway.url, http, headers={"Host": f"{name}:{port}"}).initialize().status_code == 200, name
        probe = http.get(f"{gateway.base}/healthz", headers={"Host": "10.1.2.3:8080"})
        assert probe.status_code == 200, "probes ask by address"
    with in_process_gateway({"demo": server(DEMO)}, options={**options, "allowed_hosts": ["*"]}) as gateway:
        assert Legacy(gateway.url, http, headers={"Host": "evil.example"}).initialize().status_code == 200


@requirement("ops.console-host")
@pytest.mark.parametrize("listen", ["", "127.0.0.1:0"], ids=["own listener", "admin.listen"])
def test_a_page_that_has_its_name_point_here_does_not_reach_the_console(http: httpx.Client, listen: str) -> None:
    """Neither the console nor the REST interface, even with a key. Probes and scrapers may use any name."""
    admin = {"keys": {"ops": sha256("key")}, "listen": listen, "allowed_hosts": ["admin.example"]}
    options = {"admin": admin, "host": "127.0.0.1", "allowed_hosts": ["mcp.example", "127.0.0.1"]}
    with in_process_gateway({"demo": server(DEMO)}, options=options) as gateway:
        base = operators_of(gateway) if listen else gateway.base
        port = base.rpartition(":")[2]

        def answer(path: str, host: str) -> httpx.Response:
            return http.get(base + path, headers={**bearer("key"), "Host": f"{host}:{port}"})

        for path in ("/admin", "/admin/sign-in", "/admin/sessions/live", "/admin/api/replicas"):
            refused = answer(path, "evil.example")
            assert refused.status_code == 421 and "gateway.admin.allowed_hosts" in refused.text, path
            for host in ("127.0.0.1", "10.1.2.3", "localhost", "mcp.example", "admin.example"):
                with http.stream("GET", base + path, headers={**bearer("key"), "Host": f"{host}:{port}"}) as served:
                    assert served.status_code == 200, (path, host)
        assert answer("/metrics", "gateway.monitoring.svc").status_code == 200
        assert answer("/healthz", "gateway.monitoring.svc").status_code == 200


# -- a body costs what its bytes cost, whatever it is made of; and nothing of it is read for a stranger


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
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """Its processor time is measured."""
    table: Path = tmp_path_factory.mktemp("shapes") / "shapes.json"
    table.write_text(json.dumps(SHAPES))
    servers = {"demo": server(DEMO), "shapes": table_server(table)}
    with running_gateway(servers, options={"api_keys": API_KEYS}) as running:
        yield running


@requirement("wall.structure", "wall.order")
@pytest.mark.parametrize("credential", [{}, {"Authorization": "Bearer wrong"}])
@pytest.mark.parametrize("body", [b"{", call(NESTED[: 400 * 150 - 1] + "]"), b"[" * 60_000])
def test_a_strangers_body_is_not_read(
    measured: RunningGateway, http: httpx.Client, credential: dict[str, str], body: bytes
) -> None:
    """The answer is the same whatever the body is: nobody has looked at it."""
    for path in ("/mcp", "/servers/demo/mcp"):
        plain = http.post(measured.base + path, content=call(), headers={**JSON, **credential})
        answer = http.post(measured.base + path, content=body, headers={**JSON, **credential})
        assert answer.status_code == plain.status_code == 401
        assert answer.json()["id"] is plain.json()["id"] is None
        assert answer.json()["error"]["message"] == plain.json()["error"]["message"]
        assert answer.headers["www-authenticate"] == plain.headers["www-authenticate"]


@requirement("wall.structure")
def test_a_body_of_too_many_parts_is_refused_with_its_reason(measured: RunningGateway, http: httpx.Client) -> None:
    legacy = Legacy(measured.base + "/servers/demo/mcp", http, headers=bearer(KEYS["alice"])).open()
    headers = {**JSON, **legacy.request_headers()}
    for shape in (f'{{"a":{NESTED}}}', f'{{"a":{EMPTY}}}'):
        bodies = (call(shape), call(meta=shape), b"[" + call(shape) + b"]")
        answers = [http.post(legacy.url, content=body, headers=headers) for body in bodies]
        assert [answer.status_code for answer in answers] == [400] * 3
        assert "32768 arrays, objects and members" in answers[0].text
    large = call(meta='{"b":[' + ",".join(["{}"] * 1_100) + "]}")
    answer = http.post(legacy.url, content=large, headers=headers)
    assert answer.json()["error"]["code"] == -32602 and "params._meta" in answer.json()["error"]["message"]
    assert answer.json()["id"] == 7
    assert tool_text(legacy.tool("count")) == "1", "nothing of it was executed"


@requirement("wall.structure")
def test_a_servers_answer_of_too_many_parts_fails_its_call_alone(measured: RunningGateway, http: httpx.Client) -> None:
    for client in (
        Legacy(measured.base + "/servers/shapes/mcp", http, headers=bearer(KEYS["alice"])).open(),
        Modern(measured.base + "/servers/shapes/mcp", http, headers=bearer(KEYS["alice"])),
    ):
        error: Any = error_of(client.tool("large"))
        assert "arrays, objects and members" in error["message"], error
        assert tool_text(client.tool("small")) == "small"


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@requirement("wall.structure")
def test_a_message_that_a_server_in_the_process_cannot_read_was_not_executed(http: httpx.Client) -> None:
    with in_process_gateway({"noting": {"in_process": "tests.support.sdk_servers:noting"}}) as gateway:
        client = Legacy(gateway.url, http).open()
        deep: list[Any] = functools.reduce(lambda inner, _: [inner], range(300), [])
        answer = client.tool("note", {"word": "a", "deep": deep})
        assert "may be nested too deeply" in error_of(answer)["message"], answer.text
        assert "Traceback" not in gateway.stderr() and tool_text(client.tool("note", {"word": "a"}))


@requirement("wall.structure", "wall.bystander")
def test_a_hostile_shape_costs_no_more_than_its_bytes(measured: RunningGateway, http: httpx.Client) -> None:
    """Processor time of the gateway for 4 MB of one text, and for as many bytes of every shape that was found: the
    least of three times each, because what else the machine does only adds to it."""
    process, headers = psutil.Process(measured.pid), bearer(KEYS["alice"])
    plain_text = '{"text":"' + "x" * len(NESTED) + '"}'

    def took(arguments: str = "{}", meta: str | None = None) -> float:
        body = modern_body("tools/call", {"name": "demo__count", "arguments": {}})
        sent = httpx.Request("POST", measured.url, json=body, headers={**JSON, **modern_headers(body), **headers})
        raw = sent.content.replace(b'"arguments":{}', b'"arguments":' + arguments.encode())
        if meta is not None:
            raw = raw.replace(b'"_meta":{', b'"_meta":{"x":' + meta.encode() + b",")
        given = {name: value for name, value in sent.headers.items() if name not in ("content-length", "host")}
        begin = cpu_s(process)
        for _ in range(4):
            assert http.post(measured.url, content=raw, headers=given).status_code in (200, 400)
        return cpu_s(process) - begin

    took()
    plain = min(took(plain_text) for _ in range(3))
    for name, shape in {
        "nested": {"arguments": f'{{"a":{NESTED}}}'},
        "empty objects": {"arguments": f'{{"a":{EMPTY}}}'},
        "nested in _meta": {"meta": NESTED},
        "empty objects in _meta": {"meta": EMPTY},
    }.items():
        spent = min(took(**shape) for _ in range(3))
        assert spent <= 2 * plain, f"{name}: {spent:.2f} s for four, where a text takes {plain:.2f} s"
