"""`make kernels`: the tests of sandboxes in a virtual machine with Debian's kernel, without the speed of hardware.

The guest sees this machine's files, read-only, as its root (virtiofs), and has memory in place of /tmp, /var/tmp and
/run. Its kernel has what this machine's may lack: cgroups of version 2 with all controllers, Yama. Needs root, for
virtiofsd, and Debian's packages of QEMU and of the kernel, which are fetched. Starting Python takes seconds in there.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.tools.programs import debian_files, program

ROOT: Final = Path(__file__).parents[2]
KERNEL: Final = "linux-image-6.12-cloud-amd64"
"""It has the drivers for its root built in."""

SUITE: Final = ("tests/processes/test_cgroups.py",)
_ENDED: Final = re.compile(r"^kernels: ended with (\d+)\r?$", re.MULTILINE)
_VIRTIOFSD: Final = ("/usr/lib/qemu/virtiofsd", "/usr/libexec/virtiofsd")

_INIT: Final = """#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run/home LANG=C.UTF-8
export PYTHONPATH={root} PYTHONDONTWRITEBYTECODE=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
for folder in /dev/shm /tmp /var/tmp /run; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p $HOME /sys/fs/cgroup/tests
echo 0 > /sys/fs/cgroup/tests/cgroup.procs
ip link set lo up
echo {yama} > /proc/sys/kernel/yama/ptrace_scope
cd {root}
{command}
echo "kernels: ended with $?"
sync
echo o > /proc/sysrq-trigger
sleep 60
"""


def run_in(command: Sequence[str], *, yama: int, memory_mb: int, timeout_s: float) -> int:
    """Run the command in a guest, with its output on stdout. Returns its exit code; 1 if the guest has not ended it."""
    qemu = program("qemu-system-x86_64", "qemu-system-x86")
    kernel = next(debian_files(KERNEL).glob("boot/vmlinuz-*"))
    virtiofsd = next((path for path in _VIRTIOFSD if os.path.exists(path)), None) or program("virtiofsd", "virtiofsd")
    with tempfile.TemporaryDirectory(dir=ROOT / ".cache") as name:
        init, sock = Path(name, "init").resolve(), Path(name, "files").resolve()
        init.write_text(_INIT.format(root=ROOT, yama=yama, command=shlex.join(command)), encoding="utf-8")
        init.chmod(0o755)
        given = [f"--socket-path={sock}", "-o", "source=/", "-o", "cache=always", "-o", "sandbox=chroot"]
        with subprocess.Popen([str(virtiofsd), *given], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as files:
            try:
                deadline = time.monotonic() + 10
                while not sock.exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                return _boot(qemu, kernel, init, sock, memory_mb, timeout_s)
            finally:
                files.kill()


def _boot(qemu: Path, kernel: Path, init: Path, sock: Path, memory_mb: int, timeout_s: float) -> int:
    shared = f"memory-backend-memfd,id=memory,size={memory_mb}M,share=on"
    command = [
        str(qemu),
        *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(memory_mb)),
        *("-object", shared, "-numa", "node,memdev=memory"),
        *("-chardev", f"socket,id=files,path={sock}", "-device", "vhost-user-fs-pci,chardev=files,tag=host"),
        *("-display", "none", "-serial", "stdio", "-no-reboot", "-nic", "none", "-kernel", str(kernel)),
        *("-append", f"console=ttyS0 quiet panic=-1 root=host rootfstype=virtiofs ro init={init}"),
    ]
    told = ""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as guest:
        assert guest.stdout is not None
        stop = time.monotonic() + timeout_s
        try:
            for line in guest.stdout:
                sys.stdout.write(line)
                sys.stdout.flush()
                told += line if line.startswith("kernels:") else ""
                if time.monotonic() > stop:
                    break
        finally:
            guest.kill()
    found = _ENDED.search(told)
    return int(found.group(1)) if found else 1


def main() -> None:
    """Exit with the status of pytest in the guest."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--yama", type=int, default=1, help="kernel.yama.ptrace_scope of the guest")
    parser.add_argument("--memory-mb", type=int, default=2_048)
    parser.add_argument("--timeout-s", type=float, default=1_800)
    parser.add_argument("arguments", nargs="*", default=SUITE, help="of pytest, after --")
    given = parser.parse_args()
    options = "-p no:cacheprovider -p anyio -p pytest_timeout -o timeout=600 -v"
    pytest = [sys.executable, "-m", "pytest", *options.split(), *given.arguments]
    sys.exit(run_in(pytest, yama=given.yama, memory_mb=given.memory_mb, timeout_s=given.timeout_s))


if __name__ == "__main__":
    main()
