"""`make lock`: writes the locks of the image's Python packages, with a hash of each file that a package may be."""

import os
import subprocess
from pathlib import Path

from tests.tools.obtain import python_with

ROOT = Path(__file__).parents[2]
LOCKS = {
    "requirements.lock": ("--extra", "mcp", "--extra", "tracing", "pyproject.toml", "deploy/image.in"),
    "build.lock": ("deploy/build.in",),
}
"""Lock in `deploy/` → what it is made of."""
OPTIONS = (
    "--universal",
    "--python-version",
    "3.11",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-header",
    "--quiet",
)


def main() -> None:
    uv = str(python_with({"uv": "==0.13.9"}).with_name("uv"))
    # The address of an index is a machine's, and no part of the lock.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    for name, sources in LOCKS.items():
        command = [uv, "pip", "compile", *OPTIONS, "--upgrade", *sources, "--output-file", f"deploy/{name}"]
        subprocess.run(command, check=True, cwd=ROOT, env=env)


if __name__ == "__main__":
    main()
