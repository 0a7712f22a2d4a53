"""A registry of npm and an index of Python packages on loopback, with packages that a test publishes."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

from tests.support.http_thread import Handler, answering

_VERSION_2 = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


class PackageRegistry:
    """What is published. `asked` are the paths of all requests."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[str] = []
        self.is_down = False
        self._files: dict[str, bytes] = {}
        self._npm: dict[str, dict[str, Any]] = {}
        self._pypi: dict[str, list[str]] = {}

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which npm and uv find it."""
        return {"npm_config_registry": self.url, "UV_DEFAULT_INDEX": f"{self.url}/simple"}

    def npm(self, name: str, version: str, files: Mapping[str, str], **manifest: Any) -> None:
        """Publish a package; `manifest` are further fields of its package.json. The last version is `latest`."""
        facts = {"name": name, "version": version, **manifest}
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path, text in {**files, "package.json": json.dumps(facts)}.items():
                info = tarfile.TarInfo(f"package/{path}")
                info.size, info.mode = len(text.encode()), 0o755
                archive.addfile(info, io.BytesIO(text.encode()))
        data = gzip.compress(packed.getvalue(), mtime=0)
        path = f"/{name}/-/{name.rpartition('/')[2]}-{version}.tgz"
        self._files[path] = data
        integrity = f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}"
        scripts: Mapping[str, str] = manifest.get("scripts", {})
        known = self._npm.setdefault(name, {"name": name, "dist-tags": {}, "versions": {}})
        known["dist-tags"]["latest"] = version
        known["versions"][version] = {
            **facts,
            "hasInstallScript": bool({"preinstall", "install", "postinstall"} & scripts.keys()),
            "dist": {"tarball": f"{self.url}{path}", "integrity": integrity},
        }

    def wheel(self, name: str, version: str, source: str, files: Mapping[str, str] | None = None) -> None:
        """Publish a Python package with a module of its name, whose `main` is the program of its name, and `files`."""
        module = name.replace("-", "_")
        info = f"{module}-{version}.dist-info"
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as archive:
            for path, text in {f"{module}.py": source, **(files or {})}.items():
                archive.writestr(path, text)
            archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
            archive.writestr(f"{info}/WHEEL", _VERSION_2)
            archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {module}:main\n")
            archive.writestr(f"{info}/RECORD", "")
        file = f"{module}-{version}-py3-none-any.whl"
        self._files[f"/wheels/{file}"] = packed.getvalue()
        self._pypi.setdefault(name, []).append(file)

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """The content type and body for a path; None if nothing is there."""
        self.asked.append(path)
        if path in self._files:
            return "application/octet-stream", self._files[path]
        if path.startswith("/simple/"):
            files = self._pypi.get(path.split("/")[2])
            links = "".join(f'<a href="{self.url}/wheels/{file}">{file}</a>' for file in files or ())
            return (
                None if files is None else ("text/html", f"<!DOCTYPE html><html><body>{links}</body></html>".encode())
            )
        package = self._npm.get(path.removeprefix("/"))
        return None if package is None else ("application/json", json.dumps(package).encode())


@contextmanager
def package_registry() -> Iterator[PackageRegistry]:
    """A registry that serves until the end of the block."""
    registry = PackageRegistry()

    class Packages(Handler):
        def do_GET(self) -> None:
            found = registry.answer(unquote(self.path.partition("?")[0]))
            if registry.is_down or found is None:
                self.respond(503 if registry.is_down else 404)
            else:
                self.respond(200, *found)

        do_HEAD = do_GET

    with answering(Packages) as port:
        registry.url = f"http://127.0.0.1:{port}"
        yield registry
