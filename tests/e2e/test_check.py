"""`check`, `doctor` and `run` read a configuration in the same way, and say only what is true."""

import json
import os
from pathlib import Path
from typing import Any

from tests.requirements import requirement
from tests.support.commands import run_command
from tests.support.gateway_process import DEMO, ROOT, server

DEMO_ENTRY = server(DEMO)


def ran(folder: Path, document: Any, *arguments: str, **env: str) -> tuple[int, str]:
    """Exit code and words of a command with that configuration."""
    config = folder / "mcp.json"
    config.write_text(json.dumps(document), encoding="utf-8")
    given = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    finished = run_command(*arguments, "--config", str(config), env=given, cwd=folder)
    return finished.returncode, " ".join((finished.stdout + finished.stderr).split())


@requirement("ops.misspelt", "ops.placeholders", "ops.config")
def test_check_doctor_and_run_tell_the_same_faults(tmp_path: Path) -> None:
    servers = {"a": {"command": "python server.py"}, "b": {"command": "x", "arg": ["y"], "env": {"T": "${UNSET_1}"}}}
    document = {"gatway": {"port": 1}, "mcpServers": servers}
    config = tmp_path / "mcp.json"
    for arguments, code in ((("check", "--offline"), 2), (("doctor",), 1), (("run",), 2)):
        found, words = ran(tmp_path, document, *arguments, MCP_GATEWAY_PROT="1")
        assert found == code, words
        for fault in (
            f"{config}: gatway: no such key; did you mean gateway?",
            f"{config}: mcpServers.a.command: must be the program alone: write 'python' here, and what follows it as a "
            "list in args",
            f"{config}: mcpServers.b.arg: no such field; did you mean args?",
            f"{config}: mcpServers.b.env.T: the variable UNSET_1 is not set",
            "the variable MCP_GATEWAY_PROT: no such setting; did you mean MCP_GATEWAY_PORT?",
        ):
            assert fault in words, (arguments, words)
    found, words = ran(tmp_path, {}, "run", "--", "python server.py")
    assert found == 2 and "must be the program alone: write 'python'" in words


@requirement("ops.foreign-config", "ops.check")
def test_check_and_doctor_list_what_has_no_effect(tmp_path: Path) -> None:
    document = {
        "theme": "dark",
        "mcpServers": {
            "demo": DEMO_ENTRY | {"autoApprove": ["x"]},
            "feed": {"type": "sse", "url": "https://x.example/sse"},
            "off": {"command": "x", "disabled": True},
        },
    }
    told = (
        "ignored theme",
        "mcpServers.demo: ignored autoApprove",
        "mcpServers.feed: not served, because its type sse is HTTP+SSE of MCP 2024-11-05",
        "mcpServers.off: not served, because disabled is true",
        "the variable MCP_GATEWAY_SERVICE_HOST is ignored",
    )
    found, words = ran(tmp_path, document, "check", MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
    assert found == 0 and "mcp.json: ok (demo)" in words and all(line in words for line in told), words
    found, words = ran(tmp_path, document, "check", "--json", "--offline", MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
    answer = json.loads(words)
    assert answer["good"] and answer["servers"] == ["demo"] and answer["unanswered"] == []
    assert [len(answer["warnings"]), len(answer["ignored"])] == [2, 3]
    found, words = ran(tmp_path, document, "doctor", MCP_GATEWAY_SERVICE_HOST="10.0.0.1")
    assert all(line in words for line in told), words


@requirement("ops.check")
def test_check_says_ok_only_of_servers_that_answered(tmp_path: Path) -> None:
    document = {"mcpServers": {"demo": DEMO_ENTRY, "broken": {"command": "/does/not/exist"}}}
    found, words = ran(tmp_path, document, "check")
    assert found == 0 and ": ok" not in words
    assert "mcp.json: valid (demo, broken), but without an answer from broken" in words
    assert "its lists were not checked" in words and "No such file or directory" in words, "and why"
    found, words = ran(tmp_path, document, "check", "--json")
    told = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert found == 0 and json.loads(words)["unanswered"] == ["broken"]
    assert "exit status is 0 if the file is valid, even if servers did not answer (`unanswered` in `--json`" in told
    found, words = ran(tmp_path, document, "check", "--offline")
    assert found == 0 and "ok (demo, broken); no server was started or contacted" in words


@requirement("ops.check")
def test_a_target_that_does_not_import_is_told_with_both_files(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import nothing_like_it\n", encoding="utf-8")
    document = {"mcpServers": {"mine": {"in_process": "mine:app"}}}
    for arguments, code in ((("check", "--offline"), 2), (("run", "--port", "0"), 2), (("doctor",), 1)):
        found, words = ran(tmp_path, document, *arguments)
        assert found == code, words
        assert f"{tmp_path / 'mcp.json'}: mcpServers.mine.in_process: mine:app: ModuleNotFoundError" in words, words
        assert f"({tmp_path / 'mine.py'}, line 1)" in words, words
