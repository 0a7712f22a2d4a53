"""The Python packages of the image. `make lock` writes their locks, with a hash of each file that a package may be;
`make sbom` writes build/sbom.cdx.json (CycloneDX), which describes an environment into which the lock was installed
with this Python, as the image's was."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tools.obtain import python_with

ROOT = Path(__file__).parents[2]
LOCKS = {
    "requirements.lock": ("--extra", "mcp", "--extra", "tracing", "pyproject.toml", "deploy/image.in"),
    "build.lock": ("deploy/build.in",),
}
"""Lock in `deploy/` → what it is made of."""


def _uv() -> list[str]:
    return [str(python_with({"uv": "==0.13.9"}).with_name("uv")), "pip"]


def lock() -> None:
    options = ("--universal", "--python-version", "3.11", "--generate-hashes", "--no-emit-index-url", "--no-header")
    # The address of an index is a machine's, and no part of the lock.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    for name, sources in LOCKS.items():
        command = [*_uv(), "compile", "--quiet", *options, "--upgrade", *sources, "--output-file", f"deploy/{name}"]
        subprocess.run(command, check=True, cwd=ROOT, env=env)


def sbom(out: Path) -> None:
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    describe = str(python_with({"cyclonedx-bom": "==7.5.0"}).with_name("cyclonedx-py"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = f"{folder}/bin/python"
        install = [*_uv(), "install", "--quiet", "--python", python, "--cache-dir", ".cache/uv"]
        wanted = ("--require-hashes", "--only-binary", ":all:", "--requirement", "deploy/requirements.lock")
        subprocess.run([*install, *wanted], check=True, cwd=ROOT)
        options = ("--pyproject", "pyproject.toml", "--validate", "--output-reproducible", "--output-file", str(out))
        subprocess.run([describe, "environment", *options, python], check=True, cwd=ROOT)


if __name__ == "__main__":
    lock() if sys.argv[1] == "lock" else sbom(ROOT / "build/sbom.cdx.json")
