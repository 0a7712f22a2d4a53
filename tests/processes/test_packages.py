"""Packages are fetched by the real npx and uvx, from a registry on loopback."""

import asyncio
import contextlib
import json
import os
import subprocess
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

import tests.support.stdio_server
from gateway.sandbox.package_fetch import PackageFetcher
from gateway.sandbox.package_folder import packages_root
from gateway.sandbox.runtime_paths import runtime_paths
from gateway.sandbox.shared_package_fetches import PackageInUse, Packages
from gateway.sandbox.walls_from_profile import WallsOfFetches
from tests.processes.children import until
from tests.requirements import requirement
from tests.support.gateway_process import RunningGateway, running_gateway, server
from tests.support.mcp_clients import Legacy, error_of, tool_text
from tests.support.package_registry import PackageRegistry, package_registry
from tests.tools.obtain import npx, python_with
from transports.upstream.fork_server_client import ForkServer
from transports.upstream_port import UpstreamUnavailable

SHOW = "#!/usr/bin/env node\nconsole.log(JSON.stringify([process.argv.slice(2), process.env, VERSION]))\n"
SHOW_PYTHON = "import json, os, sys\ndef main():\n    print(json.dumps([sys.argv[1:], dict(os.environ), VERSION]))\n"
DAY_S = 86_400.0


class Site:
    """A gateway's packages on one machine."""

    def __init__(self, root: Path, registry: PackageRegistry, fork_server: ForkServer) -> None:
        self.registry = registry
        self.folder = packages_root()
        self.now = 1_000_000.0
        self.home = root / "home"
        self.home.mkdir()
        path = [str(Path(npx()[0]).parent), str(uv().parent), "/usr/bin", "/bin"]
        self.env = {**registry.environment, "PATH": os.pathsep.join(path)}
        self._fork_server = fork_server
        self.packages = self.gateway()

    def gateway(self) -> Packages:
        """One more gateway, or the same one after a restart."""
        walls = WallsOfFetches(reach=[self.registry.url.removeprefix("http://")], closed=(), required=False)
        fetcher = PackageFetcher(self._fork_server, walls, timeout_s=60)
        return Packages(fetcher, lambda: self.now)

    async def use(self, line: str, packages: Packages | None = None) -> PackageInUse:
        found = await (packages or self.packages).use("shown", line.split(), self.env)
        assert found is not None
        return found

    def output(self, used: PackageInUse) -> str:
        """What the program of the package prints."""
        env = {**self.env, **used.env, "HOME": str(self.home), "PATH": os.pathsep.join([*used.path, self.env["PATH"]])}
        return subprocess.run(used.argv, env=env, cwd=self.home, capture_output=True, text=True, check=True).stdout

    def output_of(self, line: str) -> str:
        """What npx or uvx print themselves."""
        env = {**self.env, "HOME": str(self.home)}
        found = subprocess.run(line.split(), env=env, cwd=self.home, capture_output=True, text=True, check=True)
        return found.stdout

    def fetches(self) -> int:
        """How often the package was fetched; uv asks for parts of a wheel as well."""
        return sum("/-/" in path or path.startswith("/simple/") for path in self.registry.asked)


def uv() -> Path:
    return python_with({"uv": ">=0.9"}).with_name("uv")


@pytest.fixture
def registry() -> Iterator[PackageRegistry]:
    with package_registry() as made:
        made.npm("shown", "1.0.0", {"cli.js": SHOW.replace("VERSION", "'1.0.0'")}, bin={"show": "cli.js"})
        made.wheel("shown", "1.0.0", SHOW_PYTHON.replace("VERSION", "'1.0.0'"))
        yield made


@pytest.fixture
async def site(tmp_path: Path, registry: PackageRegistry, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    async with ForkServer() as fork_server:
        made = Site(tmp_path, registry, fork_server)
        yield made
        await made.packages.close()


def told(output: str) -> tuple[list[str], Mapping[str, str], str]:
    args, env, version = json.loads(output)
    return args, env, version


@requirement("box.package-once")
async def test_the_loop_waits_for_no_disk_while_a_package_is_fetched(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    loops = threading.get_ident()
    threads: dict[str, int] = {}

    def noted(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            threads[name] = threading.get_ident()
            return work(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", noted("publish", os.fsync))
    monkeypatch.setattr("gateway.sandbox.walls_from_profile.runtime_paths", noted("paths", runtime_paths))
    await site.use("uvx shown")
    assert threads.keys() == {"publish", "paths"} and loops not in threads.values()


@requirement("box.package-once", "box.package-equal")
@pytest.mark.parametrize("line", ["npx -y shown a -y", "uvx shown a -y"])
async def test_many_sessions_share_one_fetch(site: Site, line: str) -> None:
    """The program gets the arguments and what npx and uvx set, without them."""
    used = await asyncio.gather(*(site.use(line) for _ in range(5)))
    assert site.fetches() == 1
    assert {one.argv for one in used} == {used[0].argv}
    assert used[0].argv[-2:] == ("a", "-y")
    ours = told(site.output(used[0]))
    theirs = told(site.output_of(line))
    assert ours[0] == theirs[0] == ["a", "-y"]
    assert ours[2] == theirs[2] == "1.0.0"
    left_out = {name for name in theirs[1].keys() - ours[1].keys() if not name.startswith("npm_config_")}
    assert left_out <= {"COLOR", "EDITOR", "INIT_CWD", "PWD", "npm_package_json"}
    changed = {k for k in ours[1] if ours[1][k] != theirs[1].get(k)}
    assert {k: (ours[1][k], theirs[1].get(k)) for k in changed - {"PATH", "LC_CTYPE", "_"}} == {}


@requirement("box.package-once")
@pytest.mark.parametrize("line", ["npx -y shown", "uvx shown"])
async def test_a_restart_needs_no_registry(site: Site, line: str) -> None:
    await site.use(line)
    site.registry.is_down = True
    assert told(site.output(await site.use(line, packages=site.gateway())))[2] == "1.0.0"
    assert site.fetches() == 1


@requirement("box.package-fresh")
@pytest.mark.parametrize("line", ["npx -y shown", "uvx shown"])
async def test_a_newer_version_is_fetched_beside_the_sessions(site: Site, line: str) -> None:
    """After the time, a session still starts at once, with the old one. Later sessions get the new one."""
    old = await site.use(line)
    site.registry.npm("shown", "1.1.0", {"cli.js": SHOW.replace("VERSION", "'1.1.0'")}, bin={"show": "cli.js"})
    site.registry.wheel("shown", "1.1.0", SHOW_PYTHON.replace("VERSION", "'1.1.0'"))
    site.now += DAY_S / 2
    assert (await site.use(line)).argv == old.argv
    assert site.fetches() == 1
    site.now += DAY_S
    assert (await site.use(line)).argv == old.argv
    (record,) = site.folder.glob("*/current*")
    assert await until(lambda: old.argv[0] not in record.read_text(), 30)
    new = await site.use(line)
    assert told(site.output(new))[2] == "1.1.0"
    assert told(site.output(old))[2] == "1.0.0", "sessions of the old one go on"


@requirement("box.package-fresh")
async def test_a_pinned_version_is_never_fetched_again(site: Site) -> None:
    lines = ("npx -y shown@1.0.0", "uvx shown==1.0.0")
    before = [(await site.use(line)).argv for line in lines]
    asked = len(site.registry.asked)
    site.now += 400 * DAY_S
    assert [(await site.use(line)).argv for line in lines] == before
    await site.packages.close()
    assert len(site.registry.asked) == asked


@requirement("box.package-fresh")
async def test_an_unchanged_package_stays_where_it_is(site: Site) -> None:
    old = await site.use("npx -y shown")
    (copy,) = site.folder.glob("*/*/")
    site.now += 2 * DAY_S
    await site.use("npx -y shown")
    assert await until(lambda: site.fetches() == 2 and [*site.folder.glob("*/*/")] == [copy], 30)
    assert (await site.use("npx -y shown")).argv == old.argv


@requirement("box.package-errors")
@pytest.mark.parametrize("line", ["npx -y absent", "uvx absent"])
async def test_a_package_that_cannot_be_fetched_says_why_and_is_tried_later(site: Site, line: str) -> None:
    async def reason() -> str:
        with pytest.raises(UpstreamUnavailable) as failed:
            await site.use(line)
        return str(failed.value)

    first = await reason()
    assert first.startswith("server 'shown': the package absent could not be fetched: ")
    assert "not found" in first.lower() or "could not be found" in first
    asked = len(site.registry.asked)
    assert await reason() == first
    assert len(site.registry.asked) == asked, "not asked again at once"
    site.registry.npm("absent", "1.0.0", {"cli.js": SHOW.replace("VERSION", "'1'")}, bin="cli.js")
    site.registry.wheel("absent", "1.0.0", SHOW_PYTHON.replace("VERSION", "'1'"))
    site.now += 6
    assert told(site.output(await site.use(line)))[2] == "1"


@requirement("box.package-errors")
async def test_a_package_without_the_program_is_an_error(site: Site) -> None:
    for line in ("npx -y --package=shown other", "uvx --from shown other"):
        with pytest.raises(
            UpstreamUnavailable, match="the package shown could not be fetched: the package has no program"
        ):
            await site.use(line)


@requirement("box.package-errors", "box.package-whole")
async def test_a_note_that_a_package_has_changed_is_an_error_like_any_other(site: Site) -> None:
    """Code of a Python package runs beside the fetch. It could hold up the gateway, or have it fetch without end."""
    changed = {
        "piped": "os.remove(note); os.mkfifo(note)",
        "endless": "os.remove(note); os.symlink('/dev/zero', note)",
        "bytes": "open(note, 'wb').write(b'/caf\\xe9')",
        "zero": "open(note, 'w').write('/a\\0b')",
        "elsewhere": "open(note, 'w').write('/etc')",
    }
    for name, does in changed.items():
        hook = f"import atexit, os, sys\ndef change():\n    note = sys.argv[-1]\n    {does}\natexit.register(change)\n"
        site.registry.wheel(
            name, "1.0.0", SHOW_PYTHON, {"hook.pth": f"import hook_of_{name}", f"hook_of_{name}.py": hook}
        )
    for name in changed:
        for _ in range(2):
            with pytest.raises(UpstreamUnavailable, match=r"could not be fetched: (the record|uv made no environment)"):
                async with asyncio.timeout(50):
                    await site.use(f"uvx {name}")
        assert sum(f"/simple/{name}/" == path for path in site.registry.asked) == 1, "not fetched again at once"


@requirement("box.package-scripts")
async def test_install_scripts_run_without_the_keys_of_the_registry(site: Site) -> None:
    """In walls, and as npm does: an optional package whose script fails is left out, any other is an error."""
    (site.home / "secret").write_text("key-of-operator")
    outside = site.folder.parent / "outside"
    script = f"env > environment; cat $npm_config_userconfig > settings; cat {site.home}/secret > got; echo > {outside}"
    site.registry.npm("optional", "1.0.0", {}, scripts={"install": "exit 3"})
    site.registry.npm("needed", "1.0.0", {}, scripts={"postinstall": f"{script}; true"})
    site.registry.npm(
        "built", "1.0.0", {"cli.js": SHOW.replace("VERSION", "'1'")}, bin="cli.js",
        dependencies={"needed": "1"}, optionalDependencies={"optional": "1"},
    )  # fmt: skip
    site.registry.npm("broken", "1.0.0", {"cli.js": SHOW}, bin="cli.js", scripts={"install": "echo no >&2; exit 3"})
    host = site.registry.url.removeprefix("http:")
    (site.home / ".npmrc").write_text(f"{host}/:_authToken=key-of-operator\nfund=false\n")
    site.env[f"npm_config_{host}/:_password"] = "key-of-operator"
    used = await site.use("npx -y built")
    modules = Path(used.argv[0]).parents[1]
    assert "key-of-operator" not in (modules / "needed/environment").read_text()
    assert (modules / "needed/settings").read_text() == "fund=false\n"
    assert (modules / "needed/got").read_text() == "" and not outside.exists(), "scripts run in walls"
    assert not (modules / "optional").exists()
    with pytest.raises(UpstreamUnavailable, match=r"the package broken could not be fetched: command failed; .*exit 3"):
        await site.use("npx -y broken")


@requirement("box.package-once")
async def test_what_a_package_fetches_at_its_first_use_is_fetched_with_it(site: Site) -> None:
    """A session could not write it into the package."""
    wanted = json.dumps({"dependencies": {"shown": "1"}})
    place = "readabilipy/javascript/package.json"
    site.registry.wheel("reader", "1.0.0", SHOW_PYTHON.replace("VERSION", "'1'"), {place: wanted})
    used = await site.use("uvx reader")
    (found,) = Path(used.path[0]).parent.glob("lib/python3*/site-packages/readabilipy/javascript/node_modules/shown")
    assert (found / "cli.js").is_file()
    assert told(site.output(used))[2] == "1"


@requirement("box.package-neutral")
async def test_a_project_decides_neither_what_is_fetched_nor_its_variables(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do settings of npm in the home: what they say of node is for the fetch."""
    bins = tmp_path / "project/node_modules/.bin"
    bins.mkdir(parents=True)
    (bins / "shown").write_text(SHOW.replace("VERSION", "'project'"))
    (bins / "shown").chmod(0o755)
    (tmp_path / "project/package.json").write_text("{}")
    (tmp_path / "project/.npmrc").write_text("registry=http://127.0.0.1:1\nnode-options=--no-warnings\n")
    monkeypatch.chdir(tmp_path / "project")
    site.env["PATH"] = f"node_modules/.bin::{site.env['PATH']}"
    (site.home / ".npmrc").write_text("node-options=--trace-uncaught\n")
    used = await site.use("npx -y shown")
    assert told(site.output(used))[2] == "1.0.0"
    assert not [name for name in used.env if name == "NODE_OPTIONS" or name.startswith("npm_config_")]
    assert not [one for one in (*used.path, *used.code) if one.startswith(str(tmp_path / "project"))]


@requirement("box.package-whole")
async def test_a_gateway_that_stops_while_it_fetches_leaves_nothing_that_is_used(site: Site) -> None:
    site.registry.npm("slow", "1.0.0", {}, scripts={"install": "sleep 30"}, bin="package.json")
    stopped = site.gateway()
    waiting = asyncio.create_task(site.use("npx -y slow", packages=stopped))
    assert await until(lambda: [*site.folder.glob("slow*/*/npm/_npx/*/node_modules/slow")], 30)
    await stopped.close()
    with contextlib.suppress(UpstreamUnavailable):
        await waiting
    assert not [*site.folder.glob("slow*/current*")]
    assert not [*site.folder.glob("slow*/*/")]


# -- sessions of a gateway start a published server from one package, which none of them can change

SERVER = """
import errno, sys
from stdio_server import StdioServer, text, tools

def poison(call):
    try:
        open(__file__, "a").close()
    except OSError as error:
        return text(" ".join((errno.errorcode[error.errno], sys.argv[1], __file__)))
    return text("opened to be changed")

def main():
    StdioServer("s", {"tools/list": tools("poison"), "tools/call": poison}, {"tools": {}}).run()
"""


@pytest.fixture
def gateway(registry: PackageRegistry, tmp_path: Path) -> Iterator[RunningGateway]:
    shared = Path(tests.support.stdio_server.__file__).read_text(encoding="utf-8")
    registry.wheel("published", "1.0.0", SERVER, {"stdio_server.py": shared})
    env = {**registry.environment, "PATH": os.pathsep.join([str(uv().parent), "/usr/bin", "/bin"])}
    servers = {name: server(("uvx", name, "argument"), env=env, sandbox="standard") for name in ("published", "absent")}
    options, cache = {"packages": {"reach": [registry.url.removeprefix("http://")]}}, {"XDG_CACHE_HOME": str(tmp_path)}
    with running_gateway(servers, options=options, env=cache, must_stop=False) as running:
        yield running


@requirement("box.package-once", "box.package-errors")
async def test_no_session_changes_what_others_run_and_a_client_is_told_why_there_is_no_package(
    gateway: RunningGateway, registry: PackageRegistry
) -> None:
    found = []
    with httpx.Client(timeout=60) as http:
        for _ in range(2):
            session = Legacy(gateway.at("published"), http).open()
            found.append(tool_text(session.tool("poison")).split())
            session.delete()
        refused = error_of(Legacy(gateway.at("absent"), http).initialize())
    # Refused by the kernel's rules, or where the cache is below a /tmp that is the server's own, mounted to be read.
    assert all(words[0] in ("EACCES", "EROFS") and words[1] == "argument" for words in found), found
    assert found[0][2] == found[1][2] and registry.asked.count("/simple/published/") == 1
    assert "server 'absent': the package absent could not be fetched: " in refused["message"]


WRITER = """#!/usr/bin/env node
const fs = require("fs"), path = require("path")
const results = {
  initialize: {protocolVersion: "2025-06-18", capabilities: {tools: {}}, serverInfo: {name: "w", version: "1"}},
  "tools/list": {tools: [{name: "write", inputSchema: {type: "object"}}]},
}
require("readline").createInterface({input: process.stdin}).on("line", (line) => {
  const {id, method, params} = JSON.parse(line)
  if (method === "tools/call") {
    for (const [name, text] of Object.entries(params.arguments)) {
      fs.mkdirSync(path.dirname(name), {recursive: true})
      fs.writeFileSync(name, text, {mode: 0o755})
    }
    results[method] = {content: [{type: "text", text: String(process.env.NODE_OPTIONS)}]}
  }
  const answer = results[method] ? {result: results[method]} : {error: {code: -32601, message: "Method not found"}}
  if (id !== undefined) console.log(JSON.stringify({jsonrpc: "2.0", id, ...answer}))
})
"""


@requirement("box.package-neutral")
async def test_a_session_that_writes_a_project_changes_nothing_for_others(
    registry: PackageRegistry, tmp_path: Path
) -> None:
    """A server may write to the working directory, where npx would look for a project and its settings."""
    registry.npm("writer", "1.0.0", {"cli.js": WRITER}, bin="cli.js")
    project, line = tmp_path / "project", ("npx", "-y", "writer@1.0.0")
    project.mkdir()
    written = {
        "package.json": "{}",
        ".npmrc": f"node-options=--require={project}/evil.cjs\n",
        "evil.cjs": f"require('fs').writeFileSync({json.dumps(f'{project}/changed')}, '')",
        "node_modules/.bin/writer": f"#!/bin/sh\ntouch {project}/changed\n",
        "npx": "",
    }
    env = {**registry.environment, "PATH": os.pathsep.join([str(Path(npx()[0]).parent), "/usr/bin", "/bin"])}
    servers = {"writer": server((*line, str(project)), env=env, cwd=str(project), sandbox="standard")}
    options, cache = {"packages": {"reach": [registry.url.removeprefix("http://")]}}, {"XDG_CACHE_HOME": str(tmp_path)}
    started = running_gateway(servers, options=options, env=cache, must_stop=False)
    with started as running, httpx.Client() as http:
        http.timeout = 60
        first = Legacy(running.at("writer"), http).open()
        assert tool_text(first.tool("write", {str(project / name): text for name, text in written.items()}))
        asked = list(registry.asked)
        later = Legacy(running.at("writer"), http).open()
        assert tool_text(later.tool("write", {})) == "undefined", "NODE_OPTIONS"
    assert all((project / name).exists() for name in written), "the session could write them"
    assert registry.asked == asked and not (project / "changed").exists()
