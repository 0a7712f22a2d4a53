"""`gateway.config.hosts.documents`: files of TOML, JSON, and JSON with comments, within bounds."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.faults import ConfigurationError
from gateway.config.hosts.documents import read_document
from tests.requirements import requirement

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


@requirement("ops.foreign-config")
def test_comments_and_trailing_commas_are_read(tmp_path: Path) -> None:
    assert read(COMMENTED, tmp_path) == {"mcpServers": {}, "url": "http://x.example/a//b", "list": [1, 2]}
    assert read(b"\xef\xbb\xbf{}", tmp_path) == {}, "a byte order mark, which editors of Windows write"
    assert read("[mcp_servers.x]\ncommand = 'x'", tmp_path, "config.toml") == {"mcp_servers": {"x": {"command": "x"}}}


@requirement("ops.config")
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
    ],
)
def test_a_file_that_cannot_be_read_says_where_and_nothing_of_it(text: str | bytes, what: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(text, tmp_path)
    assert what in str(caught.value) and "secret-1" not in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


@requirement("ops.config")
def test_a_file_has_a_bound_and_yaml_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="larger than 4 MiB"):
        read(b" " * (4 << 20) + b"{}", tmp_path)
    with pytest.raises(ConfigurationError, match="YAML files cannot be read"):
        read("extensions:\n  a: 1\n", tmp_path, "config.yaml")


@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    with contextlib.suppress(ConfigurationError):
        assert isinstance(read(data, tmp_path_factory.getbasetemp()), dict)
