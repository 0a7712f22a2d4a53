"""Files of configuration are read in every form that hosts write."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config.configuration_errors import ConfigurationError
from gateway.config.hosts.file_formats import TABLES, adapted, read_document
from gateway.config.hosts.placeholders import Place
from tests.requirements import requirement

pytestmark = requirement("ops.foreign-config", "ops.config", "ops.misspelt")

COMMENTED = """// Settings of an editor
{
  "mcpServers": { /* none yet */ },
  "url": "http://x.example/a//b", // not a comment inside the text
  "list": [1, 2,],
}
"""


def read(text: str | bytes, folder: Path, name: str = "mcp.json") -> dict[str, Any]:
    path = folder / name
    path.write_bytes(text.encode("utf-8") if isinstance(text, str) else text)
    return read_document(path)


def test_comments_and_trailing_commas_are_read(tmp_path: Path) -> None:
    assert read(COMMENTED, tmp_path) == {"mcpServers": {}, "url": "http://x.example/a//b", "list": [1, 2]}
    assert read(b"\xef\xbb\xbf{}", tmp_path) == {}, "a byte order mark, which editors of Windows write"
    assert read("[mcp_servers.x]\ncommand = 'x'", tmp_path, "config.toml") == {"mcp_servers": {"x": {"command": "x"}}}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{\n  "a": {"b" "secret-1"}\n}', "line 2 column 13"),
        ('{"a": 1 "b": 2}', "Expected comma or '}' at line 1 column 9, found '\"'"),
        ('{"a": "secret-1",, }', "not valid JSON: Stray comma at line 1 column 18"),
        ('{"a": "secret-1"', "Unclosed object"),
        ("[" * 100_000, "nested too deeply"),
        ("// x\n" + "[" * 100_000, "nesting level"),
        ('// x\n{"a": "\\ud800"}', "not valid JSON"),
        (b"\xff\xfe{}", "not valid JSON"),
        ("[]", "must contain an object"),
        ("", "not valid JSON"),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "not valid JSON: an object has the key 'b' twice"),
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_nothing_of_it(text: str | bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(text, tmp_path)
    assert what in str(caught.value) and "secret-1" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_file_has_a_bound_and_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="larger than 4 MiB"):
        read(b" " * (4 << 20) + b"{}", tmp_path)
    with pytest.raises(ConfigurationError, match="YAML files cannot be read"):
        read("extensions:\n  a: 1\n", tmp_path, "config.yaml")


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    with contextlib.suppress(ConfigurationError):
        assert isinstance(read(data, tmp_path_factory.getbasetemp()), dict)


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


@pytest.mark.parametrize(
    ("right", "keys"),
    [("gateway", ("gatway", "Gateway", "gateways")), ("mcpServers", ("mcpServer", "mcpservers", "mcp-servers"))],
)
def test_a_key_that_resembles_one_of_ours_is_a_fault(right: str, keys: tuple[str, ...]) -> None:
    assert faults({"mcpServers": ONE} | {key: {} for key in keys}) == [
        f"{key}: no such key; did you mean {right}?" for key in keys
    ]


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


@pytest.mark.parametrize("table", [[], "x", 7])
def test_what_is_no_table_is_left_for_validation(table: Any) -> None:
    assert adapted({"servers": table}, PLACE).document == {"mcpServers": table}
    assert adapted({"mcpServers": {"a": table}}, PLACE).document == {"mcpServers": {"a": table}}
    assert adapted({}, PLACE).document == {}
