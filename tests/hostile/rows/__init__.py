"""The table: every behaviour, what refuses it, and how that is measured."""

from typing import Final

from tests.hostile.rows import files, gate, network, privilege, processes, resources
from tests.hostile.rows.row import Row

__all__ = ["ALL", "QUICK", "Row"]

ALL: Final[tuple[Row, ...]] = (
    *files.ROWS,
    *processes.ROWS,
    *network.ROWS,
    *gate.ROWS,
    *resources.ROWS,
    *privilege.ROWS,
)

QUICK: Final = frozenset(
    {
        *("ssh", "ssh, Node", "ssh, sh", "ssh, shell's child", "cloud credentials", "gateway configuration"),
        *("other server", "sibling's folder", "folders of all", "symlink", "hard link", "O_PATH", "/proc/PID/root"),
        *("write bashrc", "write cron", "write npm cache", "write site-packages", "write program", "rename out"),
        *("exchange", "mode and times", "operator's terminal", "environments", "memory", "ptrace", "sibling's output"),
        *("kill", "kill gateway", "kill by F_SETOWN", "prlimit", "stolen state secret", "abstract socket", "shmget"),
        *("passed descriptor", "docker.sock", "metadata", "metadata, Node", "metadata by IPv6", "mapped", "NAT64"),
        *("private ranges", "loopback", "loopback's other names", "gateway's listener", "rebinding", "UDP"),
        *("fast open", "io_uring", "other tables", "own listener", "reconnected", "DNS tunnel back"),
        *("descriptor bomb", "setuid", "namespaces", "mount", "system calls", "daemon", "kernel objects", "notes"),
        *("TIOCSTI, high half", "sockets, high half", "attributes by descriptor", "inherited", "honest work"),
        *("allowed host", "public host", "odd queries"),
    }
)
"""The names of the rows of `make test`: one of each kind, and none that takes its time."""
