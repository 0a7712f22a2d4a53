"""`gateway.config.hosts.files`: where a host's file has its servers, and what else in the file counts."""

from pathlib import Path
from typing import Any

import pytest

from gateway.config.hosts.files import TABLES, adapted
from gateway.config.hosts.placeholders import Place
from tests.requirements import requirement

pytestmark = requirement("ops.foreign-config")

PLACE = Place(environ={"PATH": "/usr/bin:/bin", "TOKEN": "t"}, folder=Path("/project"))
ONE = {"files": {"command": "x"}}


def faults(given: dict[str, Any]) -> list[str]:
    return adapted(given, PLACE).findings.faults


@pytest.mark.parametrize(
    "given", [*({key: ONE} for key in sorted(TABLES)), {"mcp": ONE}, {"mcp": {"servers": ONE, "inputs": []}}], ids=str
)
def test_each_host_has_its_own_table(given: dict[str, Any]) -> None:
    found = adapted({**given, "gateway": {"port": 1}, "theme": "dark"}, PLACE)
    assert found.document == {"mcpServers": ONE, "gateway": {"port": 1}} and not found.findings.faults
    assert [note.text for note in found.findings.notes] == ["ignored theme: not mcpServers or gateway"]


def test_servers_of_several_tables_are_served_together_under_names_of_their_own() -> None:
    found = adapted({"mcpServers": ONE, "servers": {"git hub/é": {"command": "y"}}}, PLACE)
    assert found.document["mcpServers"] == {"files": {"command": "x"}, "git-hub": {"command": "y"}}
    assert found.places == {"git-hub": "servers.git hub/é"}
    assert "servers.git hub/é: served as git-hub" in found.findings.notes[0].text
    assert faults({"mcpServers": ONE, "servers": ONE}) == [
        "servers.files: would have the same name as mcpServers.files: rename it"
    ]
    assert faults({"servers": {"日本": {"command": "y"}}}) == ["servers.日本: needs an ASCII letter or digit"]


@requirement("ops.misspelt")
@pytest.mark.parametrize(
    ("right", "keys"),
    [("gateway", ("gatway", "Gateway", "gateways")), ("mcpServers", ("mcpServer", "mcpservers", "mcp-servers"))],
)
def test_a_key_that_resembles_one_of_ours_is_a_fault(right: str, keys: tuple[str, ...]) -> None:
    assert faults({"mcpServers": ONE} | {key: {} for key in keys}) == [
        f"{key}: no such key; did you mean {right}?" for key in keys
    ]


@requirement("ops.misspelt")
def test_other_keys_are_settings_of_the_host() -> None:
    keys = ["theme", "vim_mode", "server", "mcpServerSettings", "$schema", "inputs", *(f"k{n}" for n in range(20))]
    found = adapted(dict.fromkeys(keys, 1) | {"mcpServers": ONE}, PLACE)
    assert not found.findings.faults
    assert [note.text.partition(":")[0] for note in found.findings.notes] == [
        "ignored theme, vim_mode, server, mcpServerSettings, k0, k1, k2, k3, k4, k5, k6, k7 and 12 more"
    ]
    assert faults({"server": ONE}) == ["server: no such key; did you mean servers?"], "there are no others"
    assert faults({"mcpServer": ONE}) == ["mcpServer: no such key; did you mean mcpServers?"], "not Codex's mcp_servers"


def test_gemini_uses_only_the_servers_that_it_allows() -> None:
    servers = {name: {"command": "x"} for name in ("a", "b", "c d")}
    for rules in ({"mcp": {"allowed": ["a", "c d"], "excluded": ["a"]}}, {"mcp": {"excluded": ["a", "b"]}}):
        assert list(adapted({"mcpServers": servers, **rules}, PLACE).document["mcpServers"]) == ["c-d"]
    found = adapted({"mcpServers": servers, "allowMCPServers": ["b"]}, PLACE)
    assert list(found.document["mcpServers"]) == ["b"]
    told = [note.text for note in found.findings.notes]
    assert "mcpServers.a: not served, because allowMCPServers does not list it" in told


@requirement("ops.config")
@pytest.mark.parametrize("table", [[], "x", 7])
def test_what_is_no_table_is_left_for_validation(table: Any) -> None:
    assert adapted({"servers": table}, PLACE).document == {"mcpServers": table}
    assert adapted({"mcpServers": {"a": table}}, PLACE).document == {"mcpServers": {"a": table}}
    assert adapted({}, PLACE).document == {}
