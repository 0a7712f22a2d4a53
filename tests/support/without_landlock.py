"""Runs the command in its arguments on a kernel without Landlock: its system calls answer ENOSYS, as on old kernels."""

import ctypes
import os
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_LANDLOCK_CREATE_RULESET = 444  # on every architecture
_ENOSYS = 38


def main() -> None:
    """Install the filter, and become the command."""
    program = b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            (0x20, 0, 0, 0),  # load the number of the system call
            (0x15, 0, 1, _LANDLOCK_CREATE_RULESET),
            (0x06, 0, 0, 0x0005_0000 | _ENOSYS),
            (0x06, 0, 0, 0x7FFF_0000),  # allow
        )
    )
    code = ctypes.create_string_buffer(program, len(program))
    described = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(described), 0, 0):
        raise OSError(ctypes.get_errno(), "no filter")
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
