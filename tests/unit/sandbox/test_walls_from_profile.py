"""The walls that a profile becomes for one server, and for one process of it."""

import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from gateway.config.sandbox import Sandbox
from gateway.config.upstreams import UpstreamSettings
from gateway.sandbox.walls_from_profile import Enclosure, OwnFolder, WallsOfFetches, enclosure_of, without_withheld
from tests.requirements import requirement
from tests.unit.sandbox.parts import make
from transports.upstream.walls.wall_specification import Grant, Walls

SECRETS = ("/etc/shadow", "/etc/ssh", "/etc/ssl/private", "/etc/kubernetes", str(Path.home() / ".ssh"))


def enclosed(
    entry: dict[str, Any], *, profile: Any = "standard", closed: tuple[str, ...] = (), **more: Any
) -> Enclosure:
    settings = UpstreamSettings.model_validate({"command": sys.executable, **entry})
    sandbox = Sandbox(profile=profile, **more)
    inherited = {"PATH": os.environ["PATH"], "HOME": str(Path.home())}
    return enclosure_of(settings, sandbox, inherited=inherited, closed=closed)


def modes(walls: Walls) -> dict[str, str]:
    return {grant.path: grant.mode for grant in walls.grants}


def mode_of(walls: Walls, path: Path | str) -> str:
    """What the walls allow at a path: the rights of all grants at it and above it."""
    real, given = os.path.realpath(path), modes(walls)
    letters = {letter for name in (real, *map(str, Path(real).parents)) for letter in given.get(name, "")}
    return "".join(letter for letter in "rwx" if letter in letters)


@pytest.fixture
def own(tmp_path: Path) -> OwnFolder:
    return OwnFolder(tmp_path / "own")


@requirement("box.default")
@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_a_process_reads_its_runtime_writes_its_own_folder_and_sees_no_secrets(profile: Any, own: OwnFolder) -> None:
    process = enclosed({}, profile=profile).process(own, sockets=["/run/own.sock"])
    walls = process.walls
    assert mode_of(walls, sys.executable) == mode_of(walls, "/usr/bin/env") == "rx"
    assert mode_of(walls, os.__file__) == "rx", "its standard library"
    assert mode_of(walls, "/etc/passwd") == "r" and mode_of(walls, "/dev/null") == "rw"
    assert not any(mode_of(walls, secret) for secret in SECRETS), modes(walls)
    assert mode_of(walls, own.home).startswith("rw") and mode_of(walls, own.temporary).startswith("rw")
    written = [path for path, mode in modes(walls).items() if "w" in mode and not path.startswith("/dev/")]
    assert written == [str(own.path)]
    assert (process.env["HOME"], process.env["TMPDIR"], process.cwd) == (str(own.home), str(own.temporary), "~")
    assert walls.reach is not None and walls.reach.sockets == ("/run/own.sock", str(own.path))
    assert walls.profile == profile and Walls.from_json(walls.to_json()) == walls
    other = enclosed({}, profile=profile).process(OwnFolder(own.path.with_name("other")), sockets=["/run/other.sock"])
    assert walls.prototype() == other.walls.prototype(), "what one session has of its own is not prepared for others"
    assert not mode_of(walls.prototype(), own.path)


@requirement("box.files")
def test_a_symlink_that_a_server_has_left_in_place_of_a_folder_of_its_own_is_not_resolved(
    own: OwnFolder, tmp_path: Path
) -> None:
    own.path.mkdir()
    own.temporary.symlink_to(tmp_path)
    walls = enclosed({}).process(own).walls
    assert walls.temporary == f"{own.path}/tmp"
    assert not mode_of(walls, tmp_path)
    own.temporary.unlink()
    own.path.rmdir()
    own.path.symlink_to(tmp_path)  # it may write the folder around it, too
    assert not mode_of(enclosed({}).process(own, folders=(str(own.path),)).walls, tmp_path)


@requirement("box.files")
def test_a_symlink_that_a_package_has_left_in_its_home_grants_nothing_for_the_next_step(tmp_path: Path) -> None:
    copy, victim = tmp_path / "copy", tmp_path / "victim"
    victim.mkdir()
    (copy / "home/.cache").mkdir(parents=True)
    (copy / "home/.cache/ms-playwright").symlink_to(victim)
    env = {"HOME": str(copy / "home"), "PATH": os.environ["PATH"]}
    fetches = WallsOfFetches(reach=(), closed=(), required=False)
    walls = fetches((sys.executable,), env, cwd=str(copy), read=(), write=str(copy), reach=())
    assert mode_of(walls, copy / "home") == "rwx" and not mode_of(walls, victim)


@requirement("box.default")
def test_standard_reaches_public_hosts_and_strict_what_is_listed(own: OwnFolder) -> None:
    entry = {"args": ["--db", "postgres://db.internal/x"]}
    standard = enclosed(entry, reach=("localhost:8123",), closed=("127.0.0.1:8080",)).walls.reach
    assert standard is not None and (standard.public, standard.names) == (True, True)
    assert standard.hosts == ("localhost:8123", "db.internal:5432") and standard.refused == ("127.0.0.1:8080",)
    strict = enclosed(entry, profile="strict", reach=("api.example.com:443",)).walls.reach
    assert strict is not None and (strict.public, strict.names) == (False, False)
    assert strict.hosts == ("api.example.com:443",)


@requirement("box.arguments")
def test_arguments_are_written_under_standard_and_read_under_strict(place: Path) -> None:
    make(place, "data/cwd/")
    data = place / "data"
    entry = {"args": [str(data)], "cwd": str(data / "cwd")}
    assert mode_of(enclosed(entry).walls, data) == "rw"
    assert mode_of(enclosed(entry, profile="strict").walls, data) == "r"
    granted = enclosed(entry, profile="strict", write=(str(data),), read=(str(data),))
    assert mode_of(granted.walls, data) == "rwx", "grants of one folder are united"
    assert enclosed(entry).cwd == str(data / "cwd") and not enclosed(entry).moves


def test_limits_of_zero_are_none() -> None:
    limits = enclosed({}, memory_mb=64, processes=0, files=128).walls.limits
    assert (limits.memory_bytes, limits.processes, limits.files) == (64 << 20, None, 128)
    assert (limits.total_memory_bytes, limits.total_is_set, limits.processors) == (None, False, None)
    total = enclosed({}, total_memory_mb=64, total_is_set=True, processors=0.5).walls.limits
    assert (total.total_memory_bytes, total.total_is_set, total.processors) == (64 << 20, True, 0.5)


def test_a_server_starts_in_its_home_unless_it_names_something_where_the_gateway_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: OwnFolder
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path, "server.py", "notes/")
    moved = {"args": ["-m", "json.tool", "run"]}, {"args": ["/usr/bin/env"]}, {"cwd": "~", "args": ["server.py"]}
    assert all(enclosed(entry).process(own).cwd == "~" for entry in moved)
    stays = {"args": ["server.py"]}, {"args": ["-m", "notes.main"]}, {"args": ["."]}, {"command": "./server.py"}
    assert all(enclosed(entry).process(own).cwd is None for entry in stays)
    assert mode_of(enclosed({"args": ["server.py"]}).walls, tmp_path / "server.py") == "rx"


@requirement("box.runtime", "box.arguments")
def test_a_shell_in_front_of_a_server_changes_nothing(place: Path) -> None:
    make(place, "app/server.py", "env/bin/python3", "data/", mode=0o755)
    make(place, "env/pyvenv.cfg", text="home = /usr/bin\n")
    text = f"cd {place}/app && exec {place}/env/bin/python3 server.py {place}/data 2>> {place}/data/log"
    found = enclosed({"command": "sh", "args": ["-c", text]})
    assert mode_of(found.walls, place / "env/bin/python3") == mode_of(found.walls, place / "app/server.py") == "rx"
    assert mode_of(found.walls, place / "data") == "rw" and not mode_of(found.walls, place)


def test_what_is_not_granted_is_told_and_a_repository_is_asked_for_until_it_is_listed(place: Path) -> None:
    def asked_for(entry: dict[str, Any], **granted: Any) -> list[str]:
        return [line.partition(":")[0] for line in enclosed(entry, **granted).not_granted]

    make(place, "main/.git/")
    make(place, "tree/.git", text=f"gitdir: {place}/main/.git/worktrees/tree\n")
    assert asked_for({"args": ["/etc"]}, read=(f"{place}/none",)) == ["/etc", f"{place}/none"]
    entry = {"args": [f"{place}/tree"]}
    assert asked_for(entry) == [f"{place}/main/.git"]
    for granted in (f"{place}/main/.git", f"{place}/main"):
        assert asked_for(entry, write=(granted,)) == []
    listed = enclosed(entry, write=(f"{place}/main/.git",))
    assert mode_of(listed.walls, place / "main/.git/objects") == "rw"


@pytest.mark.parametrize("package", ["@modelcontextprotocol/server-memory", "@modelcontextprotocol/server-memory@1.2"])
def test_a_server_that_writes_beside_its_program_writes_into_its_own_folder(
    tmp_path: Path, own: OwnFolder, package: str
) -> None:
    entry = {"command": "npx", "args": ["-y", package]}
    assert enclosed(entry).process(own).env["MEMORY_FILE_PATH"] == f"{own.home}/memory.jsonl"
    (told,) = enclosed(entry).forgets
    assert "ends with each session, and with the gateway: set MEMORY_FILE_PATH" in told
    for set_by in ({"env": {"MEMORY_FILE_PATH": f"{tmp_path}/m.json"}}, {"context_env": {"MEMORY_FILE_PATH": "id"}}):
        assert "MEMORY_FILE_PATH" not in enclosed({**entry, **set_by}).process(own).env
        assert not enclosed({**entry, **set_by}).forgets


@pytest.mark.parametrize(
    ("command", "is_java"),
    [("java -jar a.jar", True), ("/opt/jdk/bin/java X", True), ("sh -c 'exec java X'", True), ("javac X", False)],
)
def test_java_has_its_home_and_its_temporary_files_in_its_own_folder(
    own: OwnFolder, command: str, is_java: bool
) -> None:
    program, *arguments = shlex.split(command)
    env = enclosed({"command": program, "args": arguments}).process(own).env
    wanted = f"-Djava.io.tmpdir={own.temporary} -Duser.home={own.home}"
    assert env.get("JAVA_TOOL_OPTIONS") == (wanted if is_java else None)
    mine = enclosed({"command": program, "args": arguments, "env": {"JAVA_TOOL_OPTIONS": "-Xmx1g"}})
    assert "JAVA_TOOL_OPTIONS" not in mine.process(own).env


def test_no_grant_repeats_what_one_above_it_allows() -> None:
    given = modes(enclosed({"args": ["--x", "/usr/lib"]}, read=("/usr/share", "/usr/bin/env")).walls)
    assert given["/usr"] == "rx" and not any(path.startswith("/usr/") and mode != "rw" for path, mode in given.items())


def test_variables_of_the_server_win_over_those_that_a_runtime_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: OwnFolder
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path, ".cache/ms-playwright/")
    for env, is_set in (({}, True), ({"PLAYWRIGHT_BROWSERS_PATH": "0"}, False)):
        assert ("PLAYWRIGHT_BROWSERS_PATH" in enclosed({"env": env}).process(own).env) is is_set


@pytest.fixture
def app(place: Path) -> Path:
    make(place, "app/src/server.py", "app/src/lib/a.py", "app/docs/a.md", "app/package.json", text="{}")
    return place / "app"


def made(*paths: Path, meant: tuple[Path, ...] = ()) -> tuple[dict[str, str], list[str]]:
    """The modes of the grants, and what is withheld."""
    grants, withheld = without_withheld([Grant(path=str(path), mode="rx") for path in paths], [*map(str, meant)])
    return {grant.path: grant.mode for grant in grants}, withheld


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


def test_a_folder_without_credentials_stays_one_grant_and_what_an_operator_has_written_down_is_meant(app: Path) -> None:
    make(app, ".env.example")
    assert made(app, app / "src/server.py") == ({f"{app}": "rx", f"{app}/src/server.py": "rx"}, [])
    make(app, ".env")
    for meant in (app, app / ".env"):
        assert made(app, meant=(meant,)) == ({f"{app}": "rx"}, []), meant


def test_links_grant_nothing_beside_credentials_which_are_withheld_where_they_lead_to(app: Path) -> None:
    make(app, "env", "../secret")
    (app / ".env").symlink_to("env")
    (app / "link").symlink_to("../secret")
    granted = {f"{app}/{path}": "rx" for path in ("docs", "package.json", "src")}
    assert made(app) == ({f"{app}": "l"} | granted, [f"{app}/env"])
