"""Gets programs that tests run beside the product: Redis, wrk. Says what it took."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache"
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/bin", "/usr/sbin"))


def program(name: str, package: str) -> Path:
    """A program from PATH, else from the Debian package that has it, installed when we may."""
    found = shutil.which(name, path=_PATH)
    if found:
        return Path(found)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        CACHE.mkdir(exist_ok=True)
        with (CACHE / "apt.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # RUNLEVEL keeps the package from starting a service of its own.
            env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
            for command in (["update"], ["install", "-y", "--no-install-recommends", package]):
                subprocess.run(["apt-get", "-q", *command], env=env, check=True, stdout=subprocess.DEVNULL)
        found = shutil.which(name, path=_PATH)
        if found:
            print(f"{name}: taken from Debian's package {package}", file=sys.stderr)
            return Path(found)
    raise RuntimeError(f"these tests need {name}: install it (Debian: apt-get install {package}) and put it on PATH")


def debian_files(package: str) -> Path:
    """A folder with the files of a Debian package that is not installed; of a metapackage, those of the first package
    that it depends on."""
    folder = CACHE / f"debian-{package}"
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "apt.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            told = subprocess.run(["apt-cache", "depends", package], capture_output=True, text=True, check=True).stdout
            named = [line.split()[1] for line in told.splitlines() if line.strip().startswith("Depends:")]
            subprocess.run(["apt-get", "-q", "download", named[0] if named else package], cwd=folder, check=True)
            [archive] = folder.glob("*.deb")
            subprocess.run(["dpkg", "-x", archive.name, "."], cwd=folder, check=True)
            archive.unlink()
            (folder / ".complete").touch()
    return folder
