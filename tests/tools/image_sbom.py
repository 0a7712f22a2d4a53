"""`make sbom`: the Python packages of the image as CycloneDX, in build/sbom.cdx.json. It describes an environment into
which the lock was installed with this Python, as the image's was."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.tools.obtain import python_with

ROOT = Path(__file__).parents[2]


def main(out: Path) -> None:
    out = out.absolute()
    out.parent.mkdir(parents=True, exist_ok=True)
    describe = str(python_with({"cyclonedx-bom": "==7.5.0"}).with_name("cyclonedx-py"))
    uv = str(python_with({"uv": "==0.13.9"}).with_name("uv"))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        python = f"{folder}/bin/python"
        install = [uv, "pip", "install", "--quiet", "--python", python, "--cache-dir", ".cache/uv"]
        lock = ("--require-hashes", "--only-binary", ":all:", "--requirement", "deploy/requirements.lock")
        subprocess.run([*install, *lock], check=True, cwd=ROOT)
        options = ("--pyproject", "pyproject.toml", "--validate", "--output-reproducible", "--output-file", str(out))
        subprocess.run([describe, "environment", *options, python], check=True, cwd=ROOT)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build/sbom.cdx.json")
