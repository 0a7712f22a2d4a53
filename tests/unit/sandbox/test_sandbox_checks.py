"""What of the sandboxes of servers holds on a machine, which files of the gateway they open, and who is told."""

import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.settings import Settings
from gateway.sandbox.private_files import own_files
from gateway.sandbox.sandbox_checks import (
    ServerSandbox,
    configured_sandboxes,
    describe_cgroups,
    lines_of,
    log_sandboxes,
    refuse_cgroup,
    refuse_open,
    refuse_unheld,
    server_sandboxes,
    unprotected_secrets,
)
from gateway.sandbox.sandboxes_by_trust import sandboxes_of
from gateway.sandbox.system_paths import system_grants
from tests.requirements import requirement
from tests.unit.sandbox.parts import make
from transports.upstream.cgroup_delegation import Delegation
from transports.upstream.walls.kernel_support import Kernel

OLD = Kernel(landlock=0, filters="no filters", gate="no gate", namespaces="no namespaces", mounts="no mounts")
STORE = {f"sessions.db{ending}" for ending in ("", ".keys", ".lock", "-wal", "-shm", "-journal")}
NO_CGROUPS = Delegation(lacks="no cgroups were looked for")
NEW = Kernel(landlock=7, filters="", gate="", namespaces="", mounts="")


def settings_of(gateway: Any = None, **servers: Any) -> Settings:
    return Settings.model_validate({"mcpServers": servers, "gateway": gateway or {}})


def found(kernel: Kernel, delegation: Delegation = NO_CGROUPS, **sandboxes: Any) -> list[ServerSandbox]:
    settings = settings_of(**{name: {"command": "cat", "sandbox": sandbox} for name, sandbox in sandboxes.items()})
    every = {name: sandboxes_of(name, entry, settings.gateway) for name, entry in settings.mcpServers.items()}
    return server_sandboxes(every, lambda _: kernel, delegation=delegation)


@requirement("box.told")
def test_each_sandbox_of_a_server_is_there_once() -> None:
    every = found(NEW, one="standard", off="off", two={"direct": "off", "sandboxed": "strict"})
    assert [(each.title, each.sandbox.profile, each.missing) for each in every] == [
        ("one", "standard", ()),
        ("off", "off", ()),
        ("two (direct)", "off", ()),
        ("two (sandboxed)", "strict", ()),
    ]


@requirement("box.required")
def test_a_required_sandbox_that_does_not_hold_is_refused_with_what_is_missing() -> None:
    sandboxes: dict[str, Any] = {
        "a": {"profile": "standard", "required": True},
        "c": {"profile": "off", "required": True},
    }
    with pytest.raises(ConfigurationError) as refused:
        refuse_unheld(found(OLD, **sandboxes, b="strict"))
    [line] = str(refused.value).splitlines()
    assert line.startswith("mcpServers.a.sandbox: standard is required, but this machine cannot enforce it. Files are")
    refuse_unheld(found(OLD, b="strict"))
    refuse_unheld(found(NEW, a={"profile": "strict", "required": True}))


@requirement("box.told")
def test_what_does_not_hold_and_what_is_not_granted_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log_sandboxes(found(OLD, a="standard", b="standard", c="off"))
    told = [record.message for record in caplog.records]
    assert told[0] == "sandboxes: a standard, b standard"
    assert told[1].startswith("the sandbox of a, b is not fully effective: Files are not closed")
    assert len(told) == len(set(told))
    caplog.clear()
    log_sandboxes(found(OLD, c="off"))
    assert not caplog.records
    entry = {"command": "cat", "args": ["/etc"], "sandbox": {"direct": "standard", "sandboxed": "strict"}}
    log_sandboxes(configured_sandboxes(settings_of(a=entry)))
    assert [record.message for record in caplog.records if "/etc" in record.message] == [
        "mcpServers.a: not granted to its sandbox: /etc: it holds too much to be meant as a whole; grant what is "
        "needed in read or write"
    ]


@requirement("box.required", "box.tree-limits")
def test_limits_of_all_processes_that_a_setting_has_need_a_cgroup() -> None:
    none, some = Delegation(lacks="it is not delegated"), Delegation(root="/x", controllers=("memory", "cpu"))
    asked = {"profile": "standard", "total_memory_mb": 64, "processors": 2, "required": True}
    [missing] = found(NEW, none, a=asked)
    assert [what.partition(" (")[2] for what in missing.missing] == [
        "total_memory_mb): it is not delegated.",
        "processors): it is not delegated.",
    ]
    with pytest.raises(ConfigurationError, match="total_memory_mb"):
        refuse_unheld([missing])
    refuse_unheld([*found(NEW, some, a=asked), *found(NEW, none, a={"profile": "standard", "required": True})])


@requirement("box.told", "box.cgroup")
def test_where_servers_have_cgroups_is_logged_or_why_they_have_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    none, some = Delegation(lacks="it is not delegated"), Delegation(root="/x", controllers=("memory", "pids"))
    assert describe_cgroups(some) == "one for each in /x, with memory, process limits"
    log_sandboxes(found(NEW, a="standard"), none)
    assert caplog.messages[0] == ("cgroups of sandboxes: none, limits are those of each process (it is not delegated)")
    caplog.clear()
    log_sandboxes(found(NEW, a="off"), none)
    assert not caplog.messages
    with pytest.raises(ConfigurationError, match=r"gateway\.cgroup: it is not delegated"):
        refuse_cgroup("/x", none)
    for setting in (None, "off"):
        refuse_cgroup(setting, none)


@requirement("box.told")
def test_a_server_reads_no_store_beside_its_code_and_the_files_that_it_may_read_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    make(project, "package.json", "server.js", "mcp.json", "sessions.db")
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(tmp_path / "keys"))
    entry = {"args": [str(project / "server.js")], "sandbox": "standard"}
    settings = settings_of(
        {"store": f"sqlite:///{project}/sessions.db"},
        a={"command": "cat", **entry},
        b={"command": "node", **entry},
        c={"command": "cat"},
    )
    files = [project / "mcp.json", *own_files(settings.gateway)]
    assert {file.name for file in files} == {"mcp.json", "keys", *STORE}
    opened = {one.server: {Path(file).name for file in one.opens(files)} for one in configured_sandboxes(settings)}
    assert opened == {"a": set(), "b": {"mcp.json"}, "c": set()}
    walls = configured_sandboxes(settings)[1].walls
    assert walls is not None
    code = {Path(grant.path): grant.mode for grant in walls.grants}
    assert code[project] == "l" and code[project / "server.js"] == "rx"
    refuse_open(configured_sandboxes(settings), settings)
    data = settings_of(
        {"store": f"sqlite:///{project}/sessions.db"},
        b={"command": "node", **entry, "sandbox": {"profile": "standard", "read": [str(project)]}},
    )
    with pytest.raises(ConfigurationError, match=r"grants .*/project, and with it .*/sessions\.db, which holds keys"):
        refuse_open(configured_sandboxes(data), data)


@requirement("box.keys")
def test_a_folder_with_keys_of_the_gateway_is_granted_to_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, keys = tmp_path / "data", tmp_path / "data" / "deep" / "keys"
    folder.mkdir()
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(keys))
    for sandbox in ("standard", {"profile": "strict", "read": [str(folder)]}):
        settings = settings_of(files={"command": "cat", "args": [str(folder)], "sandbox": sandbox})
        with pytest.raises(ConfigurationError) as refused:
            refuse_open(configured_sandboxes(settings), settings)
        assert f"mcpServers.files: its sandbox grants {folder}, and with it {keys}" in str(refused.value)
    monkeypatch.setenv("MCP_GATEWAY_KEYS_FILE", str(tmp_path / "keys"))
    refuse_open(configured_sandboxes(settings), settings)


@requirement("box.package-whole")
def test_the_packages_that_sessions_start_from_are_written_by_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path, "data/", "beside/")
    npx = {"command": "npx", "args": ["-y", "a-server"]}
    other = {"command": "cat", "sandbox": {"write": [str(tmp_path / "data")]}}
    settings = settings_of(npx=npx, other=other)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "data"))
    with pytest.raises(ConfigurationError, match=r"mcpServers\.other: its sandbox may write .*/data, and with it "):
        refuse_open(configured_sandboxes(settings), settings)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "beside"))
    refuse_open(configured_sandboxes(settings), settings)


@requirement("box.secrets")
def test_who_may_read_the_files_of_secrets_is_told() -> None:
    options = {"secrets": {"a": {"file": "/run/secrets/a/{subject}"}, "b": {"env": "B"}}}
    every = settings_of(
        options,
        free={"command": "cat", "sandbox": "off"},
        walled={"command": "cat"},
        launched={"command": "cat", "sandbox": ["bwrap"]},
        contained={"command": "docker", "args": ["run", "notes"]},
    )
    told = {one.title: unprotected_secrets(one, every.gateway) for one in configured_sandboxes(every)}
    assert {title for title, what in told.items() if what} == {"free"}
    assert "the files of gateway.secrets.a, for every principal" in told["free"]
    [without] = found(NEW, free="off")
    assert unprotected_secrets(without, settings_of({"secrets": {"b": {"env": "B"}}}).gateway) == ""


FOUND: dict[str, Any] = {
    "sessions": ("direct", "sandboxed"), "profile": "strict", "chosen_by": "the default", "required": False,
    "launcher": (), "execute": ["/usr"], "package": None, "read": [], "write": ["/dev/null"],
    "reach": {"public": False, "hosts": [], "never": []}, "sockets": [], "listen": [],
    "limits": {"memory_mb": 64}, "cgroup": "none", "watch": False, "variables": {},
    "not_granted": [], "withheld": [], "missing": [], "shared": [],
}  # fmt: skip


def test_what_is_granted_besides_the_system_has_a_line_each() -> None:
    system = [grant.path for grant in system_grants() if grant.mode == "r"]
    own = ["/srv/data", "/etc/notes.conf"]
    found = [lines_of("box", FOUND | {"read": paths}) for paths in ([*system, *own], own)]
    with_system, without = ([line for line in lines if line.startswith("  read: ")] for lines in found)
    assert with_system == [
        "  read: /srv/data",
        "  read: /etc/notes.conf",
        f"  read: {len(system)} files and folders of the system, which every sandbox has (--json has their names)",
    ]
    assert without == with_system[:2]
