"""What of a folder of code is not granted."""

from pathlib import Path

import pytest

from gateway.sandbox.withheld import without_withheld
from tests.requirements import requirement
from tests.unit.sandbox.parts import make
from transports.upstream.walls.spec import Grant


@pytest.fixture
def app(place: Path) -> Path:
    make(place, "app/src/server.py", "app/src/lib/a.py", "app/docs/a.md", "app/package.json", text="{}")
    return place / "app"


def made(*paths: Path, meant: tuple[Path, ...] = ()) -> tuple[dict[str, str], list[str]]:
    """The modes of the grants, and what is withheld."""
    grants, withheld = without_withheld([Grant(path=str(path), mode="rx") for path in paths], [*map(str, meant)])
    return {grant.path: grant.mode for grant in grants}, withheld


def test_a_folder_without_credentials_stays_one_grant(app: Path) -> None:
    make(app, ".env.example")
    assert made(app, app / "src/server.py") == ({f"{app}": "rx", f"{app}/src/server.py": "rx"}, [])


@requirement("box.runtime")
@pytest.mark.parametrize("name", [".env", ".env.production", ".envrc", "mcp.json", "any.json"])
def test_credentials_on_the_way_to_the_code_are_withheld(app: Path, name: str) -> None:
    make(app, f"src/{name}", text='{"mcpServers": {}}')
    listed = {f"{app}": "l", f"{app}/src": "l"}
    granted = {f"{app}/{path}": "rx" for path in ("docs", "package.json", "src/lib", "src/server.py")}
    assert made(app, app / "src/server.py") == (listed | granted, [f"{app}/src/{name}"])


@requirement("box.runtime")
def test_configurations_of_clients_in_a_project_are_withheld(app: Path) -> None:
    make(app, ".vscode/mcp.json", text='{"servers": {}}')
    make(app, ".vscode/tasks.json", text="{}")
    grants, withheld = made(app)
    assert withheld == [f"{app}/.vscode/mcp.json"]
    assert grants[f"{app}/.vscode"] == "l" and grants[f"{app}/.vscode/tasks.json"] == "rx"


def test_what_an_operator_has_written_down_is_meant(app: Path) -> None:
    make(app, ".env")
    for meant in (app, app / ".env"):
        assert made(app, meant=(meant,)) == ({f"{app}": "rx"}, []), meant


def test_links_grant_nothing_beside_credentials_which_are_withheld_where_they_lead_to(app: Path) -> None:
    make(app, "env", "../secret")
    (app / ".env").symlink_to("env")
    (app / "link").symlink_to("../secret")
    granted = {f"{app}/{path}": "rx" for path in ("docs", "package.json", "src")}
    assert made(app) == ({f"{app}": "l"} | granted, [f"{app}/env"])
