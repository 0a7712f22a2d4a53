"""Which values of a server's configuration and of its links are hidden."""

import json

import pytest

from gateway.config.upstreams import UpstreamSettings
from gateway.upstreams.link_secrets import secrets_in, secrets_in_command, secrets_of_link
from session_store.tool_session import FACTS_VARIABLE
from tests.requirements import requirement
from transports.upstream_port import ConnectOptions

pytestmark = requirement("ops.frames")


def test_of_a_link_all_headers_and_all_variables_but_facts_are_hidden() -> None:
    facts = json.dumps({"workspace": "acme", "permissions": ["read"]})
    env = {FACTS_VARIABLE: facts, "WORKSPACE": "acme", "WHATEVER": "a value of the session"}
    given = ConnectOptions(env=env, headers=lambda: {"x": "Bearer of-the-session"})
    assert secrets_of_link(given) == {"a value of the session", "Bearer of-the-session", "of-the-session"}


def test_of_the_configuration_headers_and_what_is_secret_by_its_name_are_hidden(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SERVICE_TOKEN", "from the environment")
    env = {"API_KEY": "of the variable", "MODE": "from the environment", "LEVEL": "info"}
    command = UpstreamSettings(command="x", args=("--token", "of the command"), env=env)
    assert secrets_in_command(command) == {"of the command", "from the environment"}
    assert secrets_in(command) == {"of the command", "from the environment", "of the variable"}
    url = UpstreamSettings(url="http://example.com/mcp", headers={"Authorization": "Bearer of-the-header"})
    assert secrets_in(url) == {"Bearer of-the-header", "of-the-header"}
