"""Runs a command where a part of the walls is missing: `without.py landlock|gate COMMAND`.

Without Landlock its system calls answer ENOSYS, as on old kernels. Without a gate no process may read the memory of
another one, as in a container with Docker's own filter.
"""

import errno
import os
import sys

sys.path.insert(0, f"{sys.path[0]}/../..")

from transports.upstream.walls import resource_limits, seccomp
from transports.upstream.walls.raw_system_calls import AUDIT_ARCH, LAST, machine, numbers


def main() -> None:
    """Install the filter, and become the command."""
    missing, *command = sys.argv[1:]
    name, error = {
        "landlock": ("landlock_create_ruleset", errno.ENOSYS),
        "gate": ("process_vm_readv", errno.EPERM),
    }[missing]
    refused = {numbers()[name]: seccomp.refuse(error)}
    resource_limits.forbid_new_privileges()
    seccomp.install(seccomp.assemble(AUDIT_ARCH[machine()], refused, last=LAST, beyond=seccomp.ALLOW), listener=False)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
