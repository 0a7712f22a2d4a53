"""A configured server: which conversation a session has with it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.calls.conversation import Conversation
from gateway.calls.lifecycles import Deadlines
from gateway.config.faults import ConfigurationError
from gateway.config.upstreams import UpstreamSettings
from gateway.context.link_resources import LinkResources
from gateway.protocol.capabilities import Caller
from gateway.upstreams.factory import load_object
from gateway.upstreams.result_cache import ResultCache
from gateway.upstreams.session_resources import secrets_in, secrets_in_command, secrets_of_link
from gateway.upstreams.shared import SharedConversations
from gateway.upstreams.upstream import MAX_CONVERSATIONS, ConfiguredUpstream
from session_store.tool_session import FACTS_VARIABLE
from tests.requirements import requirement
from tests.support.fake_upstream import FakeLink, a_live
from tests.unit.upstreams.parts import returning
from transports.era import LEGACY, Era
from transports.upstream_port import ConnectOptions, LinkEvents, UpstreamUnavailable

pytestmark = pytest.mark.anyio


def upstream(name: str) -> ConfiguredUpstream:
    anything = cast("Any", SimpleNamespace(results=ResultCache(0)))
    probe = SimpleNamespace(
        start=None, facts=None, discovery=None, era_for=None, era_now=lambda _: LEGACY, answered=None
    )
    return ConfiguredUpstream(
        UpstreamSettings(command="c"),
        anything,
        cast("Any", SimpleNamespace(name=name, permits=None, start_times_s=(), starts={}, restarts={})),
        inventory=anything,
        known=anything,
        shared=anything,
        probe=cast("Any", probe),
        deadlines=Deadlines(call_s=1.0, start_s=1.0, noise_s=1.0, suspended_s=1.0, idle_stop_s=None),
    )


@requirement("ext.relay")
async def test_other_extension_settings_are_another_connection_up_to_a_limit() -> None:
    live = a_live()

    def caller(settings: int) -> Caller:
        return Caller(b'{"name":"c","version":"1"}', b'{"extensions":{"com.acme/a":{"n":%d}}}' % settings)

    def conversation(server: ConfiguredUpstream, settings: int) -> Conversation:
        return server.conversation(live, LEGACY, "c", caller(settings))

    server = upstream("s")
    opened = [conversation(server, n) for n in range(MAX_CONVERSATIONS)]
    assert len({id(each) for each in opened}) == MAX_CONVERSATIONS and conversation(server, 3) is opened[3]
    with pytest.raises(UpstreamUnavailable, match="16 different sets of capabilities"):
        conversation(server, MAX_CONVERSATIONS)
    assert conversation(upstream("other"), 99) not in opened
    call: Any = SimpleNamespace(live=live, method="tools/call", caller=caller(3))
    assert server.held_for(call, Era.MODERN) is opened[3], "whose lists decide the call"
    call.caller = caller(99)
    assert server.held_for(call, Era.MODERN) is opened[0], "whose tools decide the call that opens its own"
    call.method = "prompts/get"
    assert server.held_for(call, Era.MODERN) is None


@requirement("proc.last-words")
async def test_the_words_of_a_server_are_known_while_it_runs_and_ends_and_is_tried_again() -> None:
    links: list[FakeLink] = []

    async def connect(_: object, events: LinkEvents) -> FakeLink:
        links.append(FakeLink(events))
        return links[-1]

    source: Any = SimpleNamespace(name="fake", quotes="none", connect=connect, resources=SimpleNamespace())
    source.resources.shared = returning(LinkResources())
    source.started = source.failed = source.known_handshake = lambda *_: None
    shared = SharedConversations(source, Deadlines(start_s=5.0, call_s=30.0, suspended_s=30.0, idle_stop_s=None))
    assert shared.output_tail == ()
    await shared.of(Era.MODERN).ready()
    link: Any = links[0]
    newest, known = tuple(f"line {n}" for n in range(20, 60)), []
    link.last_words, end = [f"line {n}" for n in range(60)], link.close

    async def close() -> None:
        known.append(shared.output_tail)
        await end()

    link.close = close
    assert shared.output_tail == newest, "while its process runs"
    await shared.discard(Era.MODERN)
    assert known == [newest], "while its process ends"
    assert shared.output_tail == newest, "until the next process writes something"
    await shared.close()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module `operators_module` that can be imported; a test writes it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "operators_module", raising=False)
    return tmp_path / "operators_module.py"


@requirement("ops.check")
@pytest.mark.parametrize(
    ("target", "source", "fault"),
    [
        ("no_such_module:app", "", "ModuleNotFoundError: No module named 'no_such_module' (modules are looked for in "),
        ("operators_module:other", "app = 1\n", "AttributeError: module 'operators_module' has no attribute 'other'"),
        ("operators_module:app", "import no_such_module\n", "No module named 'no_such_module' ({file}, line 1)"),
        ("operators_module:app", "app = 1\n\n1 / 0\n", "ZeroDivisionError: division by zero ({file}, line 3)"),
    ],
)
def test_a_target_that_does_not_import_is_told_with_the_line_that_failed(
    target: str, source: str, fault: str, module: Path
) -> None:
    module.write_text(source, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        load_object("mine", target)
    assert str(caught.value).startswith(f"mcpServers.mine.in_process: {target}: ")
    assert fault.format(file=module) in str(caught.value)
    module.write_text("class Servers:\n    first = 'found'\n", encoding="utf-8")
    sys.modules.pop("operators_module", None)
    assert load_object("mine", "operators_module:Servers.first") == "found"


@requirement("ops.check")
def test_without_the_sdk_a_server_object_is_an_error_that_names_the_extra(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("mcp", "mcp.server"):
        monkeypatch.setitem(sys.modules, name, None)
    module.write_text("import mcp.server\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"mine\.in_process needs .* pip install 'mcp-session-gateway\[mcp\]'"):
        load_object("mine", "operators_module:server")


@requirement("ops.frames")
def test_of_a_link_all_headers_and_all_variables_but_facts_are_hidden() -> None:
    facts = json.dumps({"workspace": "acme", "permissions": ["read"]})
    env = {FACTS_VARIABLE: facts, "WORKSPACE": "acme", "WHATEVER": "a value of the session"}
    given = ConnectOptions(env=env, headers=lambda: {"x": "Bearer of-the-session"})
    assert secrets_of_link(given) == {"a value of the session", "Bearer of-the-session", "of-the-session"}


@requirement("ops.frames")
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
