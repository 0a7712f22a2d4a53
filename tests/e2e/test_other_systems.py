"""What the gateway is made of loads on systems without Linux's own calls, and says there that sandboxes do not hold.

No such system runs here: a process takes away what macOS's Python does not have.
"""

import subprocess
import sys

from tests.requirements import requirement
from tests.support.gateway_process import ROOT

WITHOUT_LINUX = """
import importlib, os, pkgutil, resource, select, signal, socket, sys
import gateway, session_store, transports

def each():
    unwanted = ("testing", "pytest_plugin", "__main__")
    for package in (gateway, session_store, transports):
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
            if not found.name.endswith(unwanted):
                yield found.name

names = list(each())
for name in names:
    importlib.import_module(name)  # so that what others made is loaded as this system needs it
for name in [name for name in sys.modules if name.split(".")[0] in ("gateway", "session_store", "transports")]:
    del sys.modules[name]
ABSENT = {
    os: "pidfd_open memfd_create eventfd sched_getaffinity splice O_PATH pipe2 setresuid setresgid unshare setns",
    socket: "SO_PEERCRED AF_NETLINK NETLINK_ROUTE SOCK_CLOEXEC SOCK_NONBLOCK MSG_CMSG_CLOEXEC TCP_USER_TIMEOUT",
    select: "epoll EPOLLIN EPOLLOUT EPOLLHUP EPOLLERR EPOLLET",
    signal: "pidfd_send_signal sigwaitinfo sigtimedwait SIGPWR SIGPOLL",
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
}
for module, absent in ABSENT.items():
    for attribute in absent.split():
        if hasattr(module, attribute):
            delattr(module, attribute)
sys.platform = "darwin"
for name in names:
    importlib.import_module(name)
from transports.upstream.walls.kernel import probe
found = probe()
print(len(names), found.landlock, bool(found.filters and found.gate and found.namespaces))
"""


@requirement("ops.other-systems")
def test_every_module_loads_without_what_only_linux_has() -> None:
    command = [sys.executable, "-c", WITHOUT_LINUX]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    count, landlock, lacks = done.stdout.split()
    assert int(count) > 400 and (landlock, lacks) == ("0", "True"), "no wall is claimed"
