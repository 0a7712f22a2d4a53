"""What the arguments and the environment of a server name, what of it is granted, and which links are followed."""

import os
import socket
from pathlib import Path

import pytest

from gateway.sandbox.paths_in_arguments import NamedPaths, named_paths
from gateway.sandbox.system_paths import OwnLink, followed, is_broad, system_grants
from tests.requirements import requirement
from tests.unit.sandbox.parts import make

pytestmark = requirement("box.arguments")


def found(*args: str, code: tuple[str, ...] = (), folder: str | None = "/", **env: str) -> NamedPaths:
    return named_paths(args, env, code=code, folder=folder)


def test_a_folder_that_an_argument_names_is_written_and_a_folder_of_code_is_read(place: Path) -> None:
    make(place, "data/", "app/src/", "app/data/", "app/memory.json")
    named = found(
        *(f"{place}/data", f"--directory={place}/app", f"{place}/app/src", "-m", "app", f"{place}/app/memory.json"),
        code=(f"{place}/app/src/server.py", f"{place}/app"),
        folder=str(place),
    )
    assert named.write.keys() == {f"{place}/data", f"{place}/app/memory.json"}
    assert named.read.keys() == {f"{place}/app", f"{place}/app/src"}, "no session changes what other sessions run"
    assert [*named.not_granted] == [
        f"{place}/{folder}: it belongs to the server's code, so it is only read; list it in write if it is data"
        for folder in ("app", "app/src")
    ]
    make(place, "tool", mode=0o755)
    assert found(f"{place}/tool").read.keys() == {f"{place}/tool"}, "a program"


def test_what_holds_too_much_is_left_out_and_told(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    make(place, ".config/")
    named = found("/", "/etc", "/tmp", str(place), f"{place}/.config", "~/notes")
    assert not named.read and not named.write
    assert len(named.not_granted) == 6 and all("write" in why for why in named.not_granted)
    assert not found("/no such/folder/x", MEMORY_FILE_PATH="/etc/new.json").write, "nor is it for a file that is made"


def test_a_missing_folder_is_told_and_that_of_a_file_with_the_command_that_makes_it(place: Path) -> None:
    """Otherwise the server could write nothing, and nothing would say why."""
    missing = "/no-such-folder: it does not exist; make it before the start, or correct the path"
    assert [*found("/no-such-folder", "/no such option").not_granted] == [missing]
    told = f"{place}/of mine/x.json: there is no folder {place}/of mine: mkdir -p '{place}/of mine'"
    assert [*found(MEMORY_FILE_PATH=f"{place}/of mine/x.json").not_granted] == [told]
    assert len(found("--data-dir", f"{place}/no/data").not_granted) == 1
    others = found(CALLBACK_PATH="/no-such/oauth/callback", PATHS=f"{place}/no/a:{place}/no/b", X=f"{place}/no/x")
    assert not others.not_granted, "a path of a URL, a list, and what may be no path"


@requirement("box.links")
def test_links_that_a_session_could_have_made_are_not_followed(place: Path) -> None:
    make(place, "secret/key", "data/")
    (place / "data/memory.json").symlink_to(place / "secret/key")
    (place / "data/notes").symlink_to(place / "secret")
    (place / "loop").symlink_to(place / "loop")
    for name in ("data/memory.json", "data/notes", "data/notes/key", "data/notes/new", "loop"):
        named = found(f"{place}/{name}")
        assert not named.read and not named.write, name
        [why] = named.not_granted
        assert "is a symlink of the gateway's user; write the path that it leads to" in why
    assert not found(PYTHONPATH=f"{place}/data/notes").read
    within = f"{place}/data/notes"
    assert not named_paths([f"{place}/data"], {}, code=(), folder="/", cwd=within).read, "its sessions write there"
    written = [f"{place}/data"]
    assert not named_paths([], {}, code=(), folder="/", cwd=within, written=written).read, "they do by a setting"
    assert named_paths([], {}, code=(), folder="/", cwd=within).read.keys() == {f"{place}/secret"}, "nobody does"


def test_files_are_written_unless_they_are_code_keys_or_settings(place: Path) -> None:
    make(place, "memory.json", "notes.db", "ca.pem", "app.toml", "run.py", "plain", "wheels/")
    named = found(
        *(f"{place}/memory.json", "--config", f"{place}/plain", f"{place}/run.py"),
        NODE_EXTRA_CA_CERTS=f"{place}/ca.pem",
        SETTINGS=f"{place}/app.toml",
        UV_FIND_LINKS=f"{place}/wheels",
    )
    assert named.write.keys() == {f"{place}/memory.json"}
    assert named.read.keys() == {f"{place}/{name}" for name in ("plain", "run.py", "ca.pem", "app.toml", "wheels")}


@pytest.mark.parametrize("name", ["notes.db", "new.db", "new.json"])
def test_a_file_that_is_made_or_has_journals_needs_its_folder_which_it_gets_if_it_is_alone_there(
    place: Path, name: str
) -> None:
    own = place / "own"
    make(own, "notes.db", "notes.db-wal", f"{name}.lock")
    file = {f"{own}/{name}"} if (own / name).exists() else set()
    assert found("--path", f"{own}/{name}").write.keys() == {str(own), *file}
    make(own, "another")
    named = found("--path", f"{own}/{name}")
    assert named.write.keys() == file
    missing = "" if file else f"{own}/{name} does not exist: make it if it is a folder; "
    assert [*named.not_granted] == [
        f"{missing}{own}: it holds more than {name}, which a server could change: give {name} a folder of its own, or "
        "list the folder in write"
    ]


def test_urls_of_files_are_files(place: Path) -> None:
    make(place, "a b.db")
    for url in (f"file://{place}/a%20b.db", f"sqlite:///{place}/a b.db"):
        assert f"{place}/a b.db" in found(url).write, url


def test_hosts_of_urls_are_reached_at_their_ports_and_the_metadata_of_a_cloud_by_no_argument() -> None:
    named = found(
        "postgresql://user:secret@db.internal/x", "--api=http://10.1.2.3:8123/v1", PROXY="http://[fd00::1]:3128"
    )
    assert [*named.reach] == ["db.internal:5432", "10.1.2.3:8123", "[fd00::1]:3128"]
    assert not found("postgres://localhost:port/x", "http://[nothing/", "a://", "redis://").reach
    named = found(*(f"http://{host}/latest" for host in ("169.254.169.254", "[fe80::1]", "[::ffff:169.254.169.254]")))
    assert not named.reach and len(named.not_granted) == 3 and all("reach" in why for why in named.not_granted)


def test_a_socket_is_granted_by_its_setting_only(place: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{place}/s")
        named = found(DOCKER_HOST=f"unix://{place}/s", SSH_AUTH_SOCK=f"{place}/s")
    assert not named.write and not named.read and any("sockets" in why for why in named.not_granted)


def test_variables_of_code_are_lists_that_are_read_without_home_folders_and_what_the_system_grants_anyway(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(place))
    make(place, "one/", "two/", "tools/")
    path = f"/usr/local/bin:/usr/bin:/bin:/usr:/opt:{place}:{place}/tools"
    named = found(PATH=path, PYTHONHOME="/usr", PYTHONPATH=f"{place}/one:{place}/two::relative")
    assert named.read.keys() == {f"{place}/tools", f"{place}/one", f"{place}/two"} and not named.write
    assert [*named.not_granted] == [f"{place}, in PATH: list what the server runs from there in read"]


def test_a_worktree_of_git_names_the_repository_that_it_needs(place: Path) -> None:
    # As `git worktree add` makes them (gitrepository-layout(5)).
    make(place, "main/.git/worktrees/tree/")
    make(place, "tree/.git", text=f"gitdir: {place}/main/.git/worktrees/tree\n")
    named = found(f"{place}/tree", f"{place}/main")
    assert named.write.keys() == {f"{place}/tree", f"{place}/main"}, "never granted: a session can write the file"
    why = f"{place}/tree is a part of this git repository: list it in write if the server uses git there"
    assert named.repositories == {f"{place}/main/.git": f"{place}/main/.git: {why}"}
    make(place, "module/.git", text="gitdir: ../main/.git/modules/module\n")
    assert [*found(f"{place}/module").repositories] == [f"{place}/main/.git/modules/module"]
    for text in ("", "gitdir: \n", "gitdir", "gitdir: a\0b", "x" * 9_999):
        make(place, "module/.git", text=text)
        assert not found(f"{place}/module").repositories
    (place / "module/.git").unlink()
    os.mkfifo(place / "module/.git")
    assert not found(f"{place}/module").repositories, "and nobody waits for it"


def test_relative_words_are_meant_in_the_working_directory(place: Path) -> None:
    make(place, "data/")
    assert found("data", "no-such-thing", "-y", folder=str(place)).write.keys() == {f"{place}/data"}
    assert not found("data", folder=None).write, "in the session's own folder, which is granted anyway"


@requirement("box.links")
def test_links_of_the_system_and_of_others_are_followed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert followed("/var/run") == os.path.realpath("/var/run"), "it lies in a folder that no grant is made for"
    make(place, "there/")
    (place / "link").symlink_to("there/../there")
    with pytest.raises(OwnLink, match=f"^{place}/link$"):
        followed(f"{place}/link/file")
    other = place.stat().st_uid + 1
    monkeypatch.setattr("os.geteuid", lambda: other)
    assert followed(f"{place}/link/no/such/file") == f"{place}/there/no/such/file"
    assert followed(f"{place}//./there/../link") == f"{place}/there"
    (place / "loop").symlink_to("loop")
    with pytest.raises(OwnLink):
        followed(f"{place}/loop")


def test_folders_that_hold_what_belongs_to_others_are_broad(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place))
    monkeypatch.setattr("tempfile.tempdir", "/srv/scratch/here")
    broad = ["/", "/etc", "/srv/scratch", "/srv/scratch/here", str(place), f"{place}/.ssh"]
    assert [path for path in (*broad, "/srv/notes", "/srv/scratch/other", f"{place}/notes") if is_broad(path)] == broad


def test_the_system_is_read_and_its_devices_written() -> None:
    modes = {grant.path: grant.mode for grant in system_grants()}
    assert modes["/usr"] == "rx" and modes["/dev/null"] == "rw" and modes["/proc"] == "r"
    assert all(grant.optional for grant in system_grants())
    assert not any(path.startswith(("/etc/ssl/private", "/etc/shadow", "/dev/shm")) or path == "/etc" for path in modes)


@requirement("box.runtime")
def test_java_of_debian_has_its_settings_and_not_the_passwords_beside_them(place: Path) -> None:
    java = place / "java-17-openjdk"
    make(java, "security/java.security", "net.properties", "jvm-amd64.cfg", "management/jmxremote.password")
    granted = {grant.path: grant.mode for grant in system_grants(str(place)) if grant.path.startswith(str(java))}
    assert granted == {f"{java}/{name}": "r" for name in ("security", "net.properties", "jvm-amd64.cfg")}
