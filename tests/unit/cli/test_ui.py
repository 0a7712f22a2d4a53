"""The command `ui` without the package that draws it."""

import sys

import pytest
from typer.testing import CliRunner

from gateway.cli.main import app
from tests.requirements import requirement


@requirement("ops.ui")
def test_without_textual_the_command_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name == "textual" or name.startswith("gateway.cli.terminal_")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    outcome = CliRunner().invoke(app, ["ui", "--url", "http://127.0.0.1:1", "--key", "k"])
    assert outcome.exit_code == 2
    assert "pip install 'mcp-session-gateway[ui]'" in " ".join(outcome.stderr.split())
