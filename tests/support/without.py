"""Runs a command where a part of the walls is missing: `without.py landlock|gate|threads COMMAND`.

Without Landlock its system calls answer ENOSYS, as on old kernels. Without a gate no process may read the memory of
another one, as in a container with Docker's own filter. Without threads, only processes have pidfds, as before Linux
6.9.
"""

import errno
import os
import sys
from typing import Final

sys.path.insert(0, f"{sys.path[0]}/../..")

from transports.upstream.walls import resource_limits, seccomp
from transports.upstream.walls.raw_system_calls import AUDIT_ARCH, LAST, machine, numbers

_PIDFD_OPEN: Final = 434  # on every machine


def main() -> None:
    """Install the filter, and become the command."""
    missing, *command = sys.argv[1:]
    decisions: dict[str, tuple[int, seccomp.Decision]] = {
        "landlock": (numbers()["landlock_create_ruleset"], seccomp.refuse(errno.ENOSYS)),
        "gate": (numbers()["process_vm_readv"], seccomp.refuse(errno.EPERM)),
        "threads": (_PIDFD_OPEN, seccomp.Match(1, {os.O_EXCL: seccomp.refuse(errno.EINVAL)}, seccomp.ALLOW)),
    }
    refused = dict([decisions[missing]])
    resource_limits.forbid_new_privileges()
    seccomp.install(seccomp.assemble(AUDIT_ARCH[machine()], refused, last=LAST, beyond=seccomp.ALLOW), listener=False)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
