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
        *("ssh", "ssh, Node", "ssh, sh", "cloud credentials", "sibling's folder", "symlink", "hard link", "O_PATH"),
        *("/proc/PID/root", "write bashrc", "write site-packages", "write program", "rename out", "mode and times"),
        *("operator's terminal", "environments", "memory", "ptrace", "sibling's output", "kill", "kill gateway"),
        *("kill by F_SETOWN", "stolen state secret", "abstract socket", "shmget", "passed descriptor", "docker.sock"),
        *(
            "metadata",
            "metadata, Node",
            "metadata by IPv6",
            "NAT64",
            "private ranges",
            "loopback",
            "gateway's listener",
        ),
        *("rebinding", "UDP", "fast open", "DNS tunnel back", "setuid", "namespaces"),
        *("system calls", "daemon", "notes", "honest work", "allowed host", "public host"),
        *("asynchronous requests", "owner's requests"),
    }
)
"""The names of the rows of `make test`: one of each kind, and none that takes its time."""
