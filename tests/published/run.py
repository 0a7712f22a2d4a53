"""Run the published servers behind a gateway, and print what each did.

`make published` runs all of them under the profile `standard`. Packages are fetched once, into `.cache/published`.
"""

import argparse
import asyncio
import functools
import http.server
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2
from mcp import types
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.published.servers import CHROMIUM, SERVERS, PublishedServer, Site
from tests.support.gateway_process import RunningGateway, running_gateway
from tests.support.http_thread import Handler, answering
from tests.tools.obtain import CACHE, npx, python_with

PROFILES: Final = ("off", "standard", "strict")
_PAGE: Final = """<!doctype html><title>A page of the site</title><main><article><h1>A page of the site</h1><p id=p></p>
<p>It has a text that is long enough to be taken for an article. A server that turns pages into Markdown looks for the
part that people read, and leaves out the rest: menus, footers and notes beside the text.</p>
<p>A second paragraph says that the first one was no accident, and that the page is worth a reader's time, too.</p>
</article></main>
<script>document.getElementById("p").textContent = "written by a " + "script"</script>"""
_CALL_S: Final = 90.0
_CACHE: Final = CACHE.resolve()
"""A sandbox grants nothing through symlinks of the gateway's user."""


@contextmanager
def site() -> Iterator[Site]:
    """A folder with files and a repository, and a web page."""
    with tempfile.TemporaryDirectory(dir=_outside_of_temporary()) as made:
        folder = Path(made)
        (folder / "page.html").write_text(_PAGE, encoding="utf-8")
        for name in ("database", "lint", "memory", "numbers"):
            (folder / name).mkdir()
        (folder / "lint/bad.js").write_text("const unused = 1\n", encoding="utf-8")
        rules = 'export default [{ rules: { "no-unused-vars": "error" } }]\n'
        (folder / "lint/eslint.config.mjs").write_text(rules, encoding="utf-8")
        _make_repository(folder / "repository")
        with answering(functools.partial(_Files, directory=str(folder))) as port:
            yield Site(folder, f"http://127.0.0.1:{port}/page.html")


def _outside_of_temporary() -> str:
    """A place for the folder: one for temporary files is each session's own in a sandbox."""
    path = _CACHE / "sites"
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def _make_repository(path: Path) -> None:
    path.mkdir()
    (path / "hello.py").write_text('print("hello")\n', encoding="utf-8")
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "The first commit")):
        subprocess.run(["git", *command], cwd=path, check=True)


class _Files(Handler, http.server.SimpleHTTPRequestHandler):
    """The files of a folder."""


def try_server(server: PublishedServer, site: Site, profile: str, reach: Sequence[str] = ()) -> tuple[str, str]:
    """Start a gateway with one server, and let a client make its calls. `reach` are registries that are not public.
    Returns why a call did not do what it should, else nothing, and what the gateway has written."""
    path = os.pathsep.join(
        [str(Path(npx()[0]).parent), str(python_with({"uv": ">=0.9"}).parent.resolve()), "/usr/bin", "/bin"]
    )
    entry = {
        "command": server.command[0],
        "args": [*server.command[1:], *server.args(site)],
        "env": {"PATH": path, "UV_SYSTEM_CERTS": "1", **server.env(site)},
        "sandbox": "off" if profile == "off" else _sandbox(profile, server.sandbox(site), reach),
    }
    options = {
        "packages": {"reach": list(reach)},
        "limits": {"start_timeout_s": _CALL_S},
    }
    cache = {"XDG_CACHE_HOME": str(_CACHE / "published")}
    with running_gateway({"server": entry}, options=options, env=cache, must_stop=False) as gateway:
        try:
            asyncio.run(_call(gateway, server, site))
        except Exception as error:
            return _reason(error), gateway.stderr()
        return "", gateway.stderr()


def _sandbox(profile: str, grants: Mapping[str, Any], public: Sequence[str]) -> dict[str, Any]:
    """`public` are addresses that stand for public hosts, which `standard` reaches without a grant."""
    reach = [*grants.get("reach", ()), *(public if profile == "standard" else ())]
    return {**grants, "profile": profile, "reach": reach}


async def _call(gateway: RunningGateway, server: PublishedServer, site: Site) -> None:
    async with (
        httpx2.AsyncClient(timeout=_CALL_S) as client,
        Client(streamable_http_client(gateway.url, http_client=client)) as connected,
    ):
        for call in server.calls(site):
            result = await connected.call_tool(call.tool, dict(call.arguments))
            text = "\n".join(_text(one) for one in result.content)
            if result.is_error or call.expected not in text:
                raise AssertionError(f"{call.tool}: {text[:600]!r}")


def _text(content: Any) -> str:
    if isinstance(content, types.EmbeddedResource):
        return str(getattr(content.resource, "text", ""))
    return content.text if isinstance(content, types.TextContent) else f"({content.type})"


def _reason(error: BaseException) -> str:
    """The first error of a group says most."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="standard")
    parser.add_argument("--only", nargs="*", default=[], help="names of servers")
    parser.add_argument(
        "--reach", nargs="*", default=[], help="addresses of registries that are not public: a mirror or a proxy"
    )
    options = parser.parse_args()
    chosen = [server for server in SERVERS if not options.only or server.name in options.only]
    if shutil.which(CHROMIUM) is None:
        print(f"{CHROMIUM} is missing: servers with a browser will fail")
    failed = 0
    with site() as place:
        for server in chosen:
            why, written = try_server(server, place, options.profile, options.reach)
            print(f"{server.name:45}  {f'FAILED  {why}' if why else server.shows}", flush=True)
            if why:
                failed += 1
                print(written)
    print(f"{len(chosen) - failed} of {len(chosen)} servers work under {options.profile!r}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
