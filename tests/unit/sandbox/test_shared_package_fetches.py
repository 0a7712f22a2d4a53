"""Which package a command has, and what is told of a fetch while it goes on and of a program that is not installed."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.config.upstreams import UpstreamSettings
from gateway.sandbox.package_command import parse
from gateway.sandbox.package_fetch import FetchFailed, FetchRequest, run
from gateway.sandbox.package_folder import FetchedPackage
from gateway.sandbox.shared_package_fetches import AT_ONCE, Packages, package_folder
from tests.requirements import requirement
from transports.upstream.child_process import Command, ProcessFailed
from transports.upstream_port import UpstreamUnavailable

pytestmark = requirement("box.package-errors")


class Endless:
    """Fetches that do not end."""

    def __init__(self) -> None:
        self.begun = 0
        self.changed = asyncio.Event()

    async def fetch(self, *_: Any) -> Any:
        self.begun += 1
        self.changed.set()
        await asyncio.Event().wait()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


async def test_who_waits_for_a_fetch_is_told_of_it_and_the_fetch_goes_on() -> None:
    fetcher = Endless()
    packages = Packages(cast("Any", fetcher), wait_s=0.01)
    for _ in range(2):
        with pytest.raises(UpstreamUnavailable, match="'a' is not started yet: its package x is still being fetched"):
            await packages.use("a", ("npx", "-y", "x"), {})
    await fetcher.changed.wait()
    assert fetcher.begun == 1 and packages.fetching("a") == "x", "it goes on"
    await packages.close()


async def test_packages_are_fetched_side_by_side_and_each_server_is_told_of_its_own() -> None:
    fetcher = Endless()
    packages = Packages(cast("Any", fetcher))
    lines = [("npx", "-y", f"x{number}") for number in range(AT_ONCE)]
    waiting = [asyncio.create_task(packages.use(line[-1], line, {})) for line in lines]
    while fetcher.begun < AT_ONCE:
        fetcher.changed.clear()
        await fetcher.changed.wait()
    assert [packages.fetching(line[-1]) for line in lines] == [line[-1] for line in lines]
    await packages.close()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert packages.fetching("x0") == ""


@pytest.mark.parametrize(("program", "do"), [("uvx", "pip install uv"), ("npx", "install Node.js"), ("x", "'x'")])
async def test_a_program_that_is_missing_is_told_with_how_to_get_it(program: str, do: str) -> None:
    class Refusing:
        async def spawn(self, command: Command, *_: Any, **__: Any) -> Any:
            raise ProcessFailed(f"No such file or directory: {program!r}", command.argv[0], is_missing=True)

    with pytest.raises(FetchFailed, match=do):
        await run(cast("Any", Refusing()), Command(argv=(program, "x"), env={}, cwd=None), timeout_s=1, package="x")
    assert str(ProcessFailed("Permission denied", program)) == "Permission denied"


@requirement("box.package-once", "box.package-neutral")
def test_neither_a_working_folder_nor_its_files_decide_on_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A path in it cannot be fetched for all, so such a command runs in each session."""

    def place(cwd: Path | None = None, **env: str) -> Path | None:
        entry = UpstreamSettings(command="npx", args=("-y", "x"), cwd=None if cwd is None else str(cwd), env=env)
        found = package_folder(entry)
        return None if found is None else found.path

    found = place()
    for name in ("package.json", "npx", "node", "x", "-y", ".npmrc"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.chdir(tmp_path)
    assert found is not None and place() == place(tmp_path) == place(HOME=str(tmp_path), OTHER="./x") == found
    assert place(npm_config_registry="https://h/npm") not in (found, None)
    for value in ("./npmrc", "..", "own=./wheels", "https://h/s ../wheels", "--require=./x"):
        assert place(NODE_OPTIONS=value) is None
    for name, value in {
        "npm_config_userconfig": ".npmrc",
        "NPM_CONFIG_GLOBALCONFIG": "conf/npmrc",
        "UV_FIND_LINKS": "https://h/s wheels",
        "UV_CONFIG_FILE": "uv.toml",
        "UV_EXTRA_INDEX_URL": "own=wheels",
        "NODE_EXTRA_CA_CERTS": "ca.pem",
    }.items():
        assert place(None, **{name: value}) is None, name
    assert place(UV_FIND_LINKS="/srv/wheels,https://h/s", UV_PYTHON="3.12", NO_PROXY="10.0.0.0/8,h") is not None
    assert place(NO_PROXY=".example.com,./") is None is not place(NO_PROXY=".example.com,..example.com")


@requirement("box.files")
def test_what_stands_beside_a_python_that_the_package_has_made_is_not_granted(tmp_path: Path) -> None:
    copy, named = tmp_path / "copy", tmp_path / "named"
    programs, modules = copy / "uv/made/bin", copy / "uv/made/lib/python3.11/site-packages"
    for folder in (named, programs, modules):
        folder.mkdir(parents=True)
    (programs / "python").write_text("#!/bin/sh\n")
    (programs / "python").chmod(0o755)
    (modules / "x.pth").write_text(f"{named}\n")
    command = parse(("uvx", "server"))
    assert command is not None
    facts: dict[str, Any] = {"argv": (), "env": {}, "path": (str(programs),), "content": "", "copy": "copy"}
    package = FetchedPackage(**facts, read=(str(copy),), fetched_at=0.0)
    request = FetchRequest(command=command, env={}, home=str(tmp_path))
    packages = cast("Any", SimpleNamespace(_interpreters={}))
    assert Packages._interpreter(packages, command, package, request) == ()
    outside = FetchedPackage(**facts, read=(), fetched_at=0.0)
    assert str(named) in Packages._interpreter(packages, command, outside, request), (
        "the files are such that they count"
    )
