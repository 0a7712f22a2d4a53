"""`sandbox learn`: what it calls a server, and what it says when there is little to grant."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from gateway.cli.sandbox import name_of, said_of
from tests.requirements import requirement

pytestmark = requirement("box.learn")


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/bin/python3.11 -u /srv/notes.py --data x.py", "notes"),
        ("python -m my_server.main --port 1", "my_server.main"),
        ("uv run --with mcp notes.py", "notes"),
        ("node dist/files.js /srv", "files"),
        ("npx -y @modelcontextprotocol/server-everything@2.0.0 stdio", "server-everything"),
        ("npx -y -p @scope/tools tools-server", "tools-server"),
        ("uvx mcp-server-fetch==1.0", "mcp-server-fetch"),
        ("/opt/bin/own-server --config other.py", "own-server"),
        ("python", "python"),
        ("python __main__.py", "main"),
    ],
)
def test_a_server_is_called_after_what_runs(command: str, name: str) -> None:
    assert name_of(command.split()) == name


def test_a_run_in_which_nothing_was_needed_says_so() -> None:
    nothing, something = {"profile": "strict"}, {"profile": "strict", "read": ["/srv"]}
    [said] = said_of(nothing, by_hand=False, code=0)
    assert "nothing beyond what `strict` grants" in said
    assert said_of(something, by_hand=False, code=None) == []
    [_, more] = said_of(nothing, by_hand=True, code=None)
    assert "tools were not called" in more
    for code, told in ((3, "exit code 3"), (-11, "was killed by signal 11")):
        [said] = said_of(nothing, by_hand=False, code=code)
        assert told in said and "nothing beyond" not in said


def test_a_folder_that_the_table_cannot_be_written_to_is_said_before_the_server_runs(tmp_path: Path) -> None:
    ran, file = tmp_path / "ran", tmp_path / "missing" / "table.json"
    words = ["sandbox", "learn", "--write", str(file), "--", "touch", str(ran)]
    outcome = CliRunner().invoke(app, words, env={"COLUMNS": "500"})
    assert outcome.exit_code == 2 and not ran.exists()
    assert f"no file can be written to {file.parent}" in outcome.stderr
