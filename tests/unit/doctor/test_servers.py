"""How many sessions the doctor says fit into the memory, and when it warns."""

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config.settings import Settings
from gateway.doctor import servers
from gateway.doctor.servers import forecast
from gateway.policy.memory_admission import MemoryState
from gateway.upstreams.server_facts import ServerState
from tests.requirements import requirement

MIB = 1 << 20
JWT = {"issuer": "https://id.example", "audience": "us", "jwks_url": "https://id.example/jwks"}
SERVERS = {"files": {"command": "a"}, "notes": {"command": "b"}, "all": {"command": "c", "shared": True}}
MEASURED = {"files": 10 * MIB, "notes": 30 * MIB, "all": 50 * MIB}


def state(most: int) -> MemoryState:
    """The memory with a limit in MiB. While the doctor's processes start, each counts as assumed."""
    return MemoryState(292 * MIB, most * MIB, 100 * MIB)


@requirement("ops.memory")
@pytest.mark.parametrize(
    ("options", "measured", "most", "machine", "level", "words"),
    [
        ({}, MEASURED, 4_100, 8_000, "ok", "40.0 MiB (files 10.0 MiB, notes 30.0 MiB), so about 100 fit into 4.0 GiB"),
        ({}, {"files": 10 * MIB}, 4_100, 8_000, "ok", "74.0 MiB (files 10.0 MiB, notes 64.0 MiB (assumed)), so"),
        ({"session": {"max_sessions": 100}}, MEASURED, 4_100, 8_000, "ok", "processes beyond that are refused"),
        ({"session": {"max_sessions": 101}}, MEASURED, 4_100, 8_000, "warning", "session.max_sessions is 101"),
        ({}, MEASURED, 460, 8_000, "warning", "about 9 fit into 460.0 MiB"),
        ({}, MEASURED, 4_100, 4_000, "warning", "its cgroup has 3.9 GiB: the kernel ends processes before the limit"),
        ({}, MEASURED, 0, 4_100, "warning", "about 100 fit into 4.0 GiB; then the kernel ends"),
        ({}, {}, 0, 0, "ok", "not known on this system; limits.total_memory_mb limits it"),
    ],
)
def test_it_says_how_many_sessions_fit(
    options: Any, measured: dict[str, int], most: int, machine: int, level: str, words: str
) -> None:
    settings = Settings.model_validate({"mcpServers": SERVERS, "gateway": options})
    found = forecast(settings, measured, state(most), machine * MIB)
    assert (found.check, found.state) == ("memory", level) and words in found.what
    assert bool(found.do) is (level == "warning")


@requirement("ops.check", "proc.warm")
@pytest.mark.parametrize(
    ("env", "advised"),
    [
        ({"A": "${secret:known}"}, True),
        ({"A": "${secret_file:known}"}, False),
        ({"A": "${secret:exchanged}"}, False),
        ({"A": "x"}, True),
    ],
)
def test_prestarted_processes_are_advised_only_where_a_server_may_have_them(env: Any, *, advised: bool) -> None:
    client = {"token_endpoint": "https://id.example/token", "client_id": "us", "client_secret_file": "/a"}
    exchange = {**client, "audience": "https://a.example", "resource": "https://a.example/mcp", "id_jag": client}
    auth = {"resource": "https://us.example/mcp", "jwt": [JWT]}
    options = {"secrets": {"known": {"env": "A"}, "exchanged": {"exchange": exchange}}, "auth": auth}

    def configured(**more: Any) -> Settings:
        return Settings.model_validate({"mcpServers": {"a": {"command": "a", "env": env} | more}, "gateway": options})

    settings = configured()
    slow = SimpleNamespace(
        name="a",
        settings=settings.mcpServers["a"],
        state=ServerState("ok", start_s=7.0),
        is_left_out=False,
        speaks_modern=True,
        probed_tools=None,
    )
    found = servers._finding(cast(Any, slow), "", settings.gateway.secrets)
    assert (found.do == "set mcpServers.a.warm to prestart processes") is advised and "7.0 s" in found.what
    with nullcontext() if advised else pytest.raises(ValueError, match="warm"):
        configured(warm=1)


def test_servers_that_have_no_process_for_a_session_cost_none() -> None:
    settings = Settings.model_validate(
        {"mcpServers": {"all": SERVERS["all"], "far": {"url": "http://127.0.0.1:9/mcp"}}}
    )
    assert forecast(settings, {}, state(4_100), 8_000 * MIB).what == "no server has a process for each session"
