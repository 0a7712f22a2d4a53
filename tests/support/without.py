"""Runs a command where a part of the walls is missing: `without.py landlock|gate COMMAND`.

Without Landlock its system calls answer ENOSYS, as on old kernels. Without a gate no process may read the memory of
another one, as in a container with Docker's own filter.
"""

import ctypes
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LANDLOCK_CREATE_RULESET = 444  # on every architecture
_PROCESS_VM_READV = {"x86_64": 310, "aarch64": 270}
_EPERM, _ENOSYS = 1, 38


def main() -> None:
    """Install the filter, and become the command."""
    missing, *command = sys.argv[1:]
    number, error = {
        "landlock": (_LANDLOCK_CREATE_RULESET, _ENOSYS),
        "gate": (_PROCESS_VM_READV[platform.machine()], _EPERM),
    }[missing]
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the number of the system call
            (0x15, 0, 1, number),
            (0x06, 0, 0, 0x0005_0000 | error),
            (0x06, 0, 0, 0x7FFF_0000),  # allow
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(described), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
