"""`gateway.config.hosts.server_entries`: one server of a host's file in the words of `mcpServers`."""

from pathlib import Path
from typing import Any

import pytest

from gateway.config.hosts.placeholders import Place
from gateway.config.hosts.server_entries import HIDDEN, NOT_SERVED, ONLY, Findings, adapted_entry, command_fault
from gateway.config.upstreams import UpstreamSettings
from tests.requirements import requirement

pytestmark = requirement("ops.foreign-config")

WHOLE = {"command": "x", "args": ["y"], "env": {"A": "b"}}
HTTP = {"url": "https://x.example"}
OURS = {"command": "x", "tools": {"a": {"direct_only": True}}}


def adapt(entry: dict[str, Any], where: str = "mcpServers.a", **environ: str) -> tuple[Any, Findings]:
    found = Findings()
    place = Place(environ={"PATH": "/usr/bin:/bin", **environ}, folder=Path("/project/.cursor"))
    return adapted_entry(where, entry, place, found), found


@pytest.mark.parametrize(
    ("given", "ours"),
    [
        ({"type": "stdio", "command": "x", "args": ["y"]}, {"command": "x", "args": ["y"]}),
        *(({key: "https://x.example", "timeout": 5}, {"url": "https://x.example"}) for key in ("serverUrl", "httpUrl")),
        ({"httpUrl": "https://h.example", "url": "https://sse.example"}, {"url": "https://h.example"}),
        *((HTTP | kind, HTTP) for kind in ({"type": "streamableHttp"}, {"transport": "streamable-http"})),
        ({"command": {"path": "x", "args": ["y"], "env": {"A": "b"}}}, WHOLE),
        ({"command": ["x", "y"], "environment": {"A": "b"}}, WHOLE),
        ({"command": "x", "args": None, "env": None, "disabled": False}, {"command": "x"}),
        ({"command": "x", "env": {"A": None, "B": 1}}, {"command": "x", "env": {"B": 1}}),
        ({"command": "x", "tools": ["*"]}, {"command": "x"}),
        ({"command": "x", "tools": []}, {"command": "x", "only_tools": []}),
        ({"command": "x", "tools": ["a", "b"], "includeTools": ["b(x)"]}, {"command": "x", "only_tools": ["b"]}),
        ({"command": "x", "disabledTools": ["a"]}, {"command": "x", "hidden_tools": ["a"]}),
        ({"command": "x", "tools": {"a": {"approval_mode": "auto"}}}, {"command": "x", "tools": {}}),
        ({"command": "x", "sandbox": {"filesystem": {"allowWrite": ["/srv"]}}}, {"command": "x"}),
        *(({"command": "x", "sandbox": own},) * 2 for own in ({"profile": "standard"}, ["bwrap"])),
        (OURS, OURS),
        (
            {"url": "https://x.example", "bearer_token_env_var": "T", "env_http_headers": {"X-A": "A"}},
            {"url": "https://x.example", "headers": {"X-A": "a", "Authorization": "Bearer t"}},
        ),
        ({"command": "x", "env_vars": ["A", {"name": "T"}, "UNSET"]}, {"command": "x", "env": {"A": "a", "T": "t"}}),
    ],
)
def test_other_hosts_say_the_same_in_other_words(given: dict[str, Any], ours: dict[str, Any]) -> None:
    entry, found = adapt(given, A="a", T="t")
    assert entry == ours and not found.faults
    UpstreamSettings.model_validate(entry)


@pytest.mark.parametrize(
    "given",
    [{"disabled": True}, {"enabled": False}, {"isActive": False}, *({"type": kind} for kind in sorted(NOT_SERVED))],
)
def test_a_server_that_is_not_served_is_told_and_nothing_else_of_it_counts(given: dict[str, Any]) -> None:
    entry, found = adapt({"command": "python server.py", "env": {"A": "${UNSET}"}, **given})
    assert entry is None and not found.faults
    assert [note.text.partition(",")[0] for note in found.notes] == ["mcpServers.a: not served"]


@requirement("ops.misspelt")
@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"disabled": "yes"}, "mcpServers.a.disabled: must be true or false"),
        ({"type": "htp"}, "mcpServers.a.type: must be one of http, local"),
        ({"arg": ["y"]}, "mcpServers.a.arg: no such field; did you mean args?"),
        ({"direct_onyl": True}, "mcpServers.a.direct_onyl: no such field; did you mean direct_only?"),
        ({"server_url": "x"}, "mcpServers.a.server_url: no such field; did you mean url?"),
        ({"args": ["a", "${UNSET}"]}, "mcpServers.a.args[1]: the variable UNSET is not set"),
        ({"env": {"T": "${UNSET}"}}, "mcpServers.a.env.T: the variable UNSET is not set"),
        ({"env": {"T": "$UNSET"}}, "mcpServers.a.env.T: the variable UNSET is not set"),
        ({"url": "${UNSET}"}, "mcpServers.a.url: the variable UNSET is not set"),
        ({"headers": {"A": "${input:key}"}}, "mcpServers.a.headers.A: ${input:key} asks a person"),
        ({"cwd": "${config:x}"}, "mcpServers.a.cwd: ${config:x} has no meaning here"),
        ({"bearer_token_env_var": "UNSET"}, "mcpServers.a.bearer_token_env_var: the variable UNSET is not set"),
        ({"env_http_headers": {"X": 1}}, "mcpServers.a.env_http_headers.X: must be a name"),
        ({"envFile": "/does/not/exist"}, "mcpServers.a.envFile: /does/not/exist: No such file"),
        ({"includeTools": "x"}, "must be lists of tool names"),
        ({"command": "python server.py --token s3cret"}, "a.command: must be the program alone: write 'python'"),
    ],
)
def test_a_fault_names_the_server_and_the_field(given: dict[str, Any], fault: str) -> None:
    _, found = adapt({"command": "x", **given})
    assert len(found.faults) == 1 and fault in found.faults[0] and "s3cret" not in found.faults[0]


def test_what_has_no_effect_is_told() -> None:
    given = {"command": "x", "autoApprove": [], "icon": "y", "colour": "red", "oauth": {}, "sandboxEnabled": True}
    _, found = adapt(given)
    assert [(note.level, note.text) for note in found.notes] == [
        ("warning", "mcpServers.a: the sandbox of that host is not applied; the server runs as gateway.sandbox says"),
        ("warning", "mcpServers.a.oauth: ignored, so the gateway has no credential from there; use headers or env"),
        ("ignored", "mcpServers.a: ignored autoApprove, colour, icon"),
    ]


def test_a_file_of_variables_is_below_the_entry_itself(tmp_path: Path) -> None:
    file = tmp_path / "vars"
    file.write_text('# comment\nexport A="one two"\nB=${A}\nC=c\nMCP_X\n', encoding="utf-8")
    entry, found = adapt({"command": "x", "envFile": str(file), "env": {"C": "mine"}})
    assert not found.faults and entry["env"] == {"A": "one two", "B": "${A}", "C": "mine"}


def test_a_program_whose_path_has_a_space_is_a_program(tmp_path: Path) -> None:
    program = tmp_path / "my server"
    program.write_text("")
    assert command_fault(str(program), None) == command_fault("python", None) == ""
    program.chmod(0o755)
    assert command_fault("my server", str(tmp_path)) == ""
    assert "what follows it as a list in args (1 more word)" in command_fault("python server.py", None)


def test_no_field_has_two_meanings() -> None:
    assert not {*ONLY, *HIDDEN} & UpstreamSettings.model_fields.keys()
