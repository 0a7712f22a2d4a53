"""`make image-check`: builds deploy/Dockerfile without a registry, and calls tools through the image, run as compose
runs it: its user, no privileges, a root that nobody can write to, secrets and packages in volumes. Needs root on
Debian.

The base images are stand-ins: Debian with its own Python 3.13, and Node from npm. buildah runs the steps of the
Dockerfile as they are.
"""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

from tests.support.gateway_process import RunningGateway
from tests.support.mcp_clients import Modern, messages, tool_text
from tests.tools.obtain import npm_packages
from tests.tools.programs import program

ROOT = Path(__file__).parents[2]
WORK = ROOT / ".cache" / "image"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
USER = "10001"
SERVERS = {
    "demo": {"command": "mcp-session-gateway", "args": ["demo-server"]},
    "everything": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-everything"]},
    "time": {"command": "uvx", "args": ["mcp-server-time"]},
}
CALLS: tuple[tuple[str, str, dict[str, str], str], ...] = (
    ("demo", "whoami", {}, '"principal": "anonymous"'),
    ("everything", "echo", {"message": "from npx"}, "from npx"),
    ("time", "get_current_time", {"timezone": "UTC"}, '"timezone": "UTC"'),
)
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))


def buildah(*arguments: str) -> str:
    """What one command of buildah prints."""
    command = [str(program("buildah", "buildah")), "--root", str(WORK / "store"), "--runroot", str(WORK / "run")]
    done = subprocess.run(
        [*command, "--storage-driver", "vfs", *arguments], stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    return done.stdout.strip()


def make_base(name: str, root: Path, *environment: str) -> None:
    """An image of the files below `root`."""
    container = buildah("from", "scratch")
    buildah("add", "--quiet", container, str(root), "/")
    buildah("config", *(f"--env={one}" for one in environment), container)
    buildah("commit", "--quiet", "--rm", container, f"localhost/{name}")


def make_bases() -> None:
    """The stand-ins of the base images, once."""
    if not (WORK / "python.made").exists():
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            packages = "ca-certificates,netbase,python3,python3-venv,tzdata"
            debootstrap = str(program("debootstrap", "debootstrap"))
            subprocess.run([debootstrap, "--variant=minbase", f"--include={packages}", "trixie", folder], check=True)
            for link in ("python", "python3"):
                Path(folder, "usr/local/bin", link).symlink_to("/usr/bin/python3")
            shutil.copyfile(CERTIFICATES, f"{folder}{CERTIFICATES}")
            make_base("python", Path(folder), "PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin")
        (WORK / "python.made").touch()
    if not (WORK / "node.made").exists():
        found = npm_packages({"node": "22", "npm": "10"}) / "node_modules"
        with tempfile.TemporaryDirectory(dir=WORK) as folder:
            Path(folder, "usr/local/bin").mkdir(parents=True)
            shutil.copyfile(found / "node/bin/node", f"{folder}/usr/local/bin/node")
            Path(folder, "usr/local/bin/node").chmod(0o755)
            shutil.copytree(found / "npm", f"{folder}/usr/local/lib/node_modules/npm", symlinks=True)
            make_base("node", Path(folder))
        (WORK / "node.made").touch()


def build() -> dict[str, Any]:
    """Build the image; its configuration."""
    text = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
    text, replaced = re.subn(r"(?m)^FROM (python|node):\S+ AS \w+$", r"FROM localhost/\1 AS \1", text)
    assert replaced == 2, "the Dockerfile has other base images than this knows"
    certificates = f"ENV SSL_CERT_FILE={CERTIFICATES} PIP_CERT={CERTIFICATES}"
    text = text.replace("AS python\n", f"AS python\n{certificates}\n", 1)
    (WORK / "Dockerfile").write_text(text, encoding="utf-8")
    options = ("--isolation=chroot", "--network=host", "--format=docker", "--ignorefile=.dockerignore")
    buildah("bud", *options, "--file", str(WORK / "Dockerfile"), "--tag", "localhost/gateway", ".")
    described = json.loads(buildah("inspect", "--type=image", "localhost/gateway"))
    config: dict[str, Any] = described["Docker"]["config"]
    return config


@contextlib.contextmanager
def started(root: str, config: dict[str, Any], command: list[str], **environment: str) -> Iterator[list[str]]:
    """The command line that runs `command` in the image as compose does."""
    with tempfile.TemporaryDirectory(dir=WORK) as folder:
        mounts = Path(folder, "mounts.sh")
        mounts.write_text(MOUNTS, encoding="utf-8")
        env = [*config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        drop = ["--no-new-privs", "--bounding-set=-all,+sys_ptrace", "--inh-caps=-all"]
        user = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", *drop]
        inside = ["env", "--chdir=/home/gateway", "-i", "HOME=/home/gateway", *env, *user, "--", *command]
        apart = ["unshare", "--mount", "--pid", "--fork", "sh", "-eu", str(mounts), root, str(WORK)]
        yield [*apart, *inside]


MOUNTS = """
root=$1; work=$2; shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o nosuid,nodev,noexec,mode=1777 tmpfs "$root/tmp"
mount -t tmpfs -o nosuid,nodev,noexec,uid=10001,gid=10001,mode=0700 tmpfs "$root/home/gateway"
mount -t tmpfs -o mode=0755 tmpfs "$root/mnt"
for volume in secrets packages; do mount --bind "$work/volumes/$volume" "$root/$volume"; done
cp "$work/mcp.json" "$root/mnt/mcp.json"
mount -o remount,bind,ro "$root"
exec chroot "$root" "$@"
"""


def main() -> None:
    WORK.mkdir(parents=True, exist_ok=True)
    make_bases()
    config = build()
    assert config["User"] == "gateway" and config["Entrypoint"] == ["tini", "--", "mcp-session-gateway"], config
    container = buildah("from", "localhost/gateway")
    try:
        check(buildah("mount", container), config)
    finally:
        buildah("rm", container)
    print("the image builds, and serves its own, npx and uvx servers")


def check(root: str, config: dict[str, Any]) -> None:
    shutil.rmtree(WORK / "volumes", ignore_errors=True)
    for name in ("secrets", "packages"):  # as a new volume: owner and mode of the mount point in the image
        there = os.stat(f"{root}/{name}")
        (WORK / "volumes" / name).mkdir(parents=True)
        os.chown(WORK / "volumes" / name, there.st_uid, there.st_gid)
        os.chmod(WORK / "volumes" / name, there.st_mode & 0o7777)
    (WORK / "mcp.json").write_text(json.dumps({"mcpServers": SERVERS}), encoding="utf-8")
    service = COMPOSE["services"]["secrets"]
    words = [word.replace("$$", "$") for word in (*service["entrypoint"], *service["command"])]
    with started(root, config, words) as command:
        subprocess.run(command, check=True, timeout=120)
    gateway = COMPOSE["services"]["gateway1"]
    words = [*config["Entrypoint"], *gateway["command"]]
    words = [word.replace("/etc/mcp/mcp.json", "/mnt/mcp.json") for word in words]
    # One gateway with a store of its own: Redis is another image. The keys are those that compose made.
    given = {"MCP_GATEWAY_KEYS_FILE": "/secrets/keys", "XDG_CACHE_HOME": "/packages"}
    passed = {name: str(CERTIFICATES) for name in ("NODE_EXTRA_CA_CERTS",)}
    with started(root, config, [*words, "--port", "0"], **given, **passed) as command:
        running = RunningGateway(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        try:
            running.wait_ready()
            call_tools(running)
        finally:
            print(running.stderr(), file=sys.stderr)
            if running.process.poll() is None:
                # The first process of the namespace ends with all others in it.
                for child in psutil.Process(running.pid).children():
                    child.kill()
                running.process.wait(30)


def call_tools(gateway: RunningGateway) -> None:
    base = gateway.base.replace("0.0.0.0", "127.0.0.1")
    with httpx.Client(timeout=300) as http:
        for name, tool, arguments, expected in CALLS:
            client = Modern(f"{base}/servers/{name}/mcp", http)
            deadline = time.monotonic() + 300
            while "error" in messages(client.tool(tool, arguments))[-1]:  # its package is being fetched
                assert time.monotonic() < deadline, f"{name} does not start"
            text = tool_text(client.tool(tool, arguments))
            assert expected in text, f"{name}: {tool}: {text}"
            print(f"{name}: {tool}: {text[:100]!r}")


if __name__ == "__main__":
    main()
