"""Who gets the one-time link: the person at a terminal of the machine that alone reaches the console."""

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.admin.local_gateways import LocalGateway
from gateway.config.settings import Settings
from gateway.sandbox.sandbox_checks import server_sandboxes
from gateway.serving.gateway import Gateway
from gateway.serving.startup_greeting import Greeting, farewell, greeting_of, link_for, local_gateway
from tests.requirements import requirement
from transports.upstream.walls.kernel_support import Kernel

OLD = Kernel(landlock=0, filters="it has none", gate="it has none", namespaces="it has none", mounts="it has none")
NEW = Kernel(landlock=7, filters="", gate="", namespaces="", mounts="")
DEMO = {"mcpServers": {"demo": {"url": "http://127.0.0.1:9/mcp"}}}
OPEN = {"host": "0.0.0.0", "anonymous": True, "allowed_hosts": ["mcp.example.com"]}
KEYS = {"admin": {"keys": {"ann": "0" * 64}}}


def settings(**options: Any) -> Settings:
    return Settings.model_validate({**DEMO, "gateway": options})


def greeting(**options: Any) -> Greeting:
    given = settings(**options)
    link = link_for(given.gateway)
    host = given.gateway.host
    return greeting_of(Gateway(given, link=link), f"http://{f'[{host}]' if ':' in host else host}:8080/mcp", link)


@requirement("first.link")
@pytest.mark.parametrize(
    ("options", "has_link"),
    [
        ({}, True),
        (KEYS, True),
        ({"host": "::1"}, True),
        (OPEN, False),
        (OPEN | {"admin": {"listen": "127.0.0.1:9000"}}, True),
        ({"admin": {"listen": "0.0.0.0:9000"}}, False),
        ({"auth": {"proxies": {"networks": ["127.0.0.1/32"]}}}, False),
    ],
)
def test_there_is_a_link_only_if_no_other_machine_reaches_the_console(options: Any, has_link: bool) -> None:
    assert (link_for(settings(**options).gateway) is not None) == has_link


@requirement("first.greeting")
def test_a_greeting_has_the_console_where_it_is_served() -> None:
    own = greeting()
    assert own.console.startswith("http://127.0.0.1:8080/admin/sign-in/") and own.has_link
    assert greeting(**OPEN).console == ""
    assert greeting(**OPEN, **KEYS).console == "http://localhost:8080/admin"
    beside = greeting(**OPEN, admin={"listen": "127.0.0.1:9000"})
    assert beside.console.startswith("http://127.0.0.1:9000/admin/sign-in/")


@requirement("first.greeting")
def test_a_greeting_says_who_may_call_and_where_sessions_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own, keyed = greeting(), greeting(api_keys={"ann": "0" * 64}, store="sqlite:///sessions.db")
    assert own.callers == "everyone on this machine, without a credential" and not own.needs_token
    assert own.store == "in memory: they end with this process"
    assert keyed.callers == "with a credential: API keys" and keyed.needs_token
    assert keyed.store == f"{tmp_path}/sessions.db, a new file"
    (tmp_path / "sessions.db").touch()
    assert greeting(store="sqlite:///sessions.db").store == f"{tmp_path}/sessions.db"
    assert [(one.name, one.state, one.tools, one.sandbox) for one in own.servers] == [("demo", "starting", None, "")]
    everywhere = greeting(**OPEN)
    assert everywhere.url == "http://localhost:8080/mcp" and everywhere.scope
    assert greeting(**OPEN | {"host": "::"}).url == "http://localhost:8080/mcp"


@requirement("first.local")
@pytest.mark.parametrize(
    ("kernel", "entry", "options", "is_left"),
    [
        (NEW, {"url": "http://127.0.0.1:9/mcp"}, {}, True),
        (NEW, {"url": "http://127.0.0.1:9/mcp"}, {"admin": {"listen": "127.0.0.1:9000"}}, True),
        (NEW, {"url": "http://127.0.0.1:9/mcp"}, {"admin": {"listen": "127.0.0.1:0"}}, False),
        (NEW, {"url": "http://127.0.0.1:9/mcp"}, OPEN, False),
        (NEW, {"command": "true"}, {}, True),
        (OLD, {"command": "true"}, {}, False),
        (NEW, {"command": "true", "sandbox": "off"}, {}, False),
        (NEW, {"command": "true"}, {"sandbox": "off"}, False),
        (NEW, {"command": "true", "sandbox": {"read": ["RUNTIME"]}}, {}, False),
        (NEW, {"command": "true", "sandbox": {"write": ["ABOVE"]}}, {}, False),
        (NEW, {"command": "true", "args": ["RUNTIME"]}, {}, False),
    ],
)
def test_a_key_is_left_for_commands_only_where_no_server_can_read_it(
    tmp_path: Path, kernel: Kernel, entry: Any, options: Any, is_left: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "runtime"
    folder.mkdir()
    monkeypatch.setattr(
        "gateway.serving.startup_greeting.server_sandboxes",
        lambda given, **more: server_sandboxes(given, lambda _: kernel, **more),
    )
    text = json.dumps(entry).replace("RUNTIME", str(folder)).replace("ABOVE", str(tmp_path))
    given = Settings.model_validate({"mcpServers": {"one": json.loads(text)}, "gateway": options})
    link = link_for(given.gateway)
    found = local_gateway(Gateway(given, link=link), "http://127.0.0.1:8080/mcp", link, folder, tmp_path / "mcp.json")
    assert isinstance(found, LocalGateway) == is_left
    if found is not None:
        assert link is not None and found.key == link.key and found.config == str(tmp_path / "mcp.json")
        assert found.url == ("http://127.0.0.1:9000" if options else "http://127.0.0.1:8080")


@requirement("first.farewell")
@pytest.mark.parametrize(
    ("count", "store", "fault", "said"),
    [
        (0, "memory://", "", "no session was live here"),
        (1, "memory://", "", "1 session ended, which was in memory"),
        (3, "memory://", "", "3 sessions ended, which were in memory"),
        (1, "sqlite:///s", "", "1 session stays in sqlite:///s; the next gateway with this store continues it"),
        (2, "redis://:p@r", "", "2 sessions stay in redis://…@r; the next gateway with this store continues them"),
        (2, "redis://:pw@r/0", "gone", "redis://…@r/0 has 2 sessions, without changes since it stopped answering"),
    ],
)
def test_a_stop_says_what_becomes_of_the_sessions(count: int, store: str, fault: str, said: str) -> None:
    assert farewell(count, store, fault) == f"stopped: {said}"
