"""Who gets the one-time link: the person at a terminal of the machine that alone reaches the console."""

from pathlib import Path
from typing import Any

import pytest

from gateway.config.settings import Settings
from gateway.serving.gateway import Gateway
from gateway.serving.greeting import Greeting, greeting_of, link_for
from tests.requirements import requirement

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
    assert keyed.store == "sqlite:///sessions.db"
    assert [(one.name, one.state, one.tools, one.sandbox) for one in own.servers] == [("demo", "starting", None, "")]
    everywhere = greeting(**OPEN)
    assert everywhere.url == "http://localhost:8080/mcp" and everywhere.scope
    assert greeting(**OPEN | {"host": "::"}).url == "http://localhost:8080/mcp"
