"""The settings of sandboxes: their forms, and which of them decides."""

from typing import Any

import pytest
from pydantic import ValidationError

from gateway.config.sandbox import DEFAULT_PROFILE, LIMITS, Sandbox, sandbox_of
from gateway.config.settings import GatewaySettings, Settings
from gateway.config.upstreams import UpstreamSettings
from tests.requirements import requirement

BWRAP = ["bwrap", "--"]


def sandbox(own: Any = None, everywhere: Any = None, *, trust: str = "direct", command: str = "x") -> Sandbox:
    entry = UpstreamSettings.model_validate({"command": command, **({} if own is None else {"sandbox": own})})
    gateway = GatewaySettings.model_validate({} if everywhere is None else {"sandbox": everywhere})
    return sandbox_of("mcpServers.a", entry.sandbox, gateway.sandbox, trust, entry.command)


def test_a_profile_is_chosen_by_the_nearest_setting_that_names_one() -> None:
    for found, profile, chosen_by in (
        (sandbox(), DEFAULT_PROFILE, "the default"),
        (sandbox(everywhere="strict"), "strict", "gateway.sandbox"),
        (sandbox("off", "strict"), "off", "mcpServers.a.sandbox"),
        (sandbox({"read": ["/srv"]}, {"direct": "strict"}), "strict", "gateway.sandbox.direct"),
        (sandbox({"profile": "standard", "direct": "off"}), "off", "mcpServers.a.sandbox.direct"),
    ):
        assert (found.profile, found.chosen_by) == (profile, chosen_by)
    assert not sandbox("off").has_walls and sandbox("standard").has_walls


@requirement("box.trust")
def test_trust_chooses_between_the_two_parts_of_a_table() -> None:
    by_trust = {"direct": "standard", "sandboxed": {"profile": "strict", "reach": ["api.example.com:443"]}}
    assert sandbox(by_trust).profile == "standard" and sandbox(by_trust).reach == ()
    guest = sandbox(by_trust, trust="sandboxed")
    assert (guest.profile, guest.reach) == ("strict", ("api.example.com:443",))
    assert sandbox(by_trust, trust="a trust that nobody knows") == guest, "unknown is not trusted"


def test_grants_add_up_and_limits_are_the_nearest() -> None:
    own = {"read": ["/srv/a"], "memory_mb": 512, "direct": {"read": ["/srv/d"], "files": 0}}
    everywhere = {"read": ["/srv/a", "/etc/ca.pem"], "memory_mb": 64, "processes": 9, "required": True}
    found = sandbox(own, everywhere)
    assert found.read == ("/srv/d", "/srv/a", "/etc/ca.pem") and found.required
    assert (found.memory_mb, found.processes, found.files) == (512, 9, 0)
    assert sandbox("strict").memory_mb == LIMITS["strict"]["memory_mb"], "of the profile, if no setting has one"


@requirement("pol.sandbox")
def test_limits_hold_without_walls_too_but_for_one_that_would_count_the_users_processes() -> None:
    limits = {"memory_mb": 2, "files": 9, "processes": 7}
    assert sandbox({"profile": "off"} | limits).prlimit == ("prlimit", "--as=2097152", "--nofile=9", "--")
    assert sandbox({"launcher": ["box", "--"]}, {"files": 9}).prlimit == ("prlimit", "--nofile=9", "--")
    assert sandbox("off").prlimit == sandbox({"profile": "standard"} | limits).prlimit == ()
    with pytest.raises(ValidationError, match="resources is gone: set memory_mb and files in sandbox"):
        UpstreamSettings.model_validate({"command": "c", "resources": {"files": 9}})


@requirement("box.tree-limits")
def test_the_memory_of_all_processes_is_twice_that_of_one_unless_a_setting_has_it() -> None:
    for found, totals in (
        (sandbox({"profile": "standard", "memory_mb": 512}), (1_024, False, 0)),
        (sandbox({"total_memory_mb": 300, "processors": 0.5}, {"total_memory_mb": 9}), (300, True, 0.5)),
        (sandbox({"profile": "strict", "total_memory_mb": 0}), (0, False, 0)),
        (sandbox("off"), (0, False, 0)),
    ):
        assert (found.total_memory_mb, found.total_is_set, found.processors) == totals


@requirement("pol.sandbox")
def test_a_list_is_a_launcher_for_sandboxed_sessions_and_the_whole_sandbox() -> None:
    for own, everywhere in ((BWRAP, None), (None, BWRAP)):
        guest = sandbox(own, everywhere, trust="sandboxed")
        assert (guest.launcher, guest.profile) == (("bwrap", "--"), "off")
        assert sandbox(own, everywhere).profile == "standard", "direct trust needs no launcher"
    assert sandbox("strict", BWRAP, trust="sandboxed").launcher == (), "the server's own setting wins"
    assert sandbox(["env"], BWRAP, trust="sandboxed").launcher == ("env",)


def test_a_launcher_beside_a_profile_runs_within_the_walls() -> None:
    both = sandbox({"profile": "standard", "launcher": ["nice"]})
    inner = sandbox({"profile": "standard", "sandboxed": {"launcher": ["nice"]}}, trust="sandboxed")
    assert [(found.profile, found.launcher) for found in (both, inner)] == [("standard", ("nice",))] * 2


def test_a_container_is_a_sandbox_of_its_own() -> None:
    found = sandbox(everywhere="strict", command="/usr/bin/docker")
    assert (found.profile, found.chosen_by) == ("off", "the command, whose container is the sandbox")
    assert sandbox("standard", command="podman").profile == "standard", "unless its own setting says so"


@pytest.mark.parametrize(
    ("given", "where"),
    [
        *(("stict", "sandbox.profile"), ({"profile": "standard", "reed": []}, "sandbox.reed")),
        *(({"read": ["data"]}, "sandbox.read.0"), ({"write": ["/srv/../etc"]}, "sandbox.write.0")),
        ({"reach": ["api.example.com:443", "http://example.com"]}, "sandbox.reach.1"),
        *(({"listen": [0]}, "sandbox.listen.0"), ({"memory_mb": -1}, "sandbox.memory_mb")),
        ({"sandboxed": {"direct": "off"}}, "sandbox.sandboxed.direct"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_its_place(given: Any, where: str) -> None:
    with pytest.raises(ValidationError) as refused:
        UpstreamSettings.model_validate({"command": "x", "sandbox": given})
    assert [".".join(map(str, fault["loc"])) for fault in refused.value.errors()] == [where]


def test_a_server_without_a_process_has_no_sandbox() -> None:
    with pytest.raises(ValidationError, match="sandbox needs a command"):
        UpstreamSettings.model_validate({"url": "https://example.com/mcp", "sandbox": "strict"})
    gateway = {"sandbox": "strict"}
    assert Settings.model_validate({"mcpServers": {"a": {"url": "https://example.com/mcp"}}, "gateway": gateway})
