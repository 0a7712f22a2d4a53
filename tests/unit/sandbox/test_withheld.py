"""What of a folder of code is not granted."""

import os
from pathlib import Path

import pytest

from gateway.sandbox.withheld import without_withheld
from tests.requirements import requirement
from transports.upstream.walls.spec import Grant


@pytest.fixture
def place(tmp_path: Path) -> Path:
    place = Path(os.path.realpath(tmp_path))
    for name in ("app/src/server.py", "app/src/lib/a.py", "app/docs/a.md", "app/package.json"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("{}")
    return place


def made(*paths: Path, meant: tuple[Path, ...] = ()) -> tuple[dict[str, str], list[str]]:
    grants, withheld = without_withheld([Grant(path=str(path), mode="rx") for path in paths], [*map(str, meant)])
    return {grant.path: grant.mode for grant in grants}, withheld


def test_a_folder_without_credentials_stays_one_grant(place: Path) -> None:
    (place / "app/.env.example").touch()
    assert made(place / "app", place / "app/src/server.py") == (
        {f"{place}/app": "rx", f"{place}/app/src/server.py": "rx"},
        [],
    )


@requirement("box.runtime")
@pytest.mark.parametrize("name", [".env", ".env.production", ".envrc", "mcp.json", "any.json"])
def test_credentials_on_the_way_to_the_code_are_withheld(place: Path, name: str) -> None:
    (place / "app/src" / name).write_text('{"mcpServers": {}}')
    grants, withheld = made(place / "app", place / "app/src/server.py")
    assert withheld == [f"{place}/app/src/{name}"]
    assert grants == {
        f"{place}/app": "l",
        f"{place}/app/docs": "rx",
        f"{place}/app/package.json": "rx",
        f"{place}/app/src": "l",
        f"{place}/app/src/lib": "rx",
        f"{place}/app/src/server.py": "rx",
    }


@requirement("box.runtime")
def test_configurations_of_clients_in_a_project_are_withheld(place: Path) -> None:
    for name, content in (("mcp.json", '{"servers": {}}'), ("tasks.json", "{}")):
        (place / "app/.vscode" / name).parent.mkdir(exist_ok=True)
        (place / "app/.vscode" / name).write_text(content)
    grants, withheld = made(place / "app")
    assert withheld == [f"{place}/app/.vscode/mcp.json"]
    assert grants[f"{place}/app/.vscode"] == "l" and grants[f"{place}/app/.vscode/tasks.json"] == "rx"


def test_what_an_operator_has_written_down_is_meant(place: Path) -> None:
    (place / "app/.env").touch()
    assert made(place / "app", meant=(place / "app",)) == ({f"{place}/app": "rx"}, [])
    assert made(place / "app", meant=(place / "app/.env",)) == ({f"{place}/app": "rx"}, [])


def test_a_link_in_a_folder_with_credentials_grants_nothing(place: Path) -> None:
    (place / "secret").touch()
    (place / "app/link").symlink_to(place / "secret")
    (place / "app/.env").touch()
    grants, _ = made(place / "app")
    assert f"{place}/app/link" not in grants and f"{place}/app/src" in grants


def test_a_link_of_that_name_is_withheld_with_what_it_leads_to(place: Path) -> None:
    (place / "app/env").touch()
    (place / "app/.env").symlink_to("env")
    grants, withheld = made(place / "app")
    assert withheld == [f"{place}/app/env"] and f"{place}/app/env" not in grants and f"{place}/app/src" in grants
