"""Filters are arrays of the kernel's instructions. What the kernel does with them: tests/processes/test_filters.py."""

import errno
import struct

import pytest

from tests.requirements import requirement
from transports.upstream.walls.seccomp import ALLOW, Match, Return, assemble, refuse

X86_64, LAST = 0xC000_003E, 469


def test_a_filter_longer_than_the_kernel_takes_is_not_made() -> None:
    table = {number: Match(0, {value: Return(value) for value in range(1, 100)}, ALLOW) for number in range(0, 60, 2)}
    with pytest.raises(ValueError, match="too long"):
        assemble(X86_64, table, last=LAST, beyond=ALLOW)


@requirement("box.system")
def test_instructions_are_those_of_the_kernel() -> None:
    """Load the machine, compare, kill. Load the number, compare, decide."""
    expected = [
        (0x20, 0, 0, 4), (0x15, 1, 0, X86_64), (0x06, 0, 0, 0x8000_0000),
        (0x20, 0, 0, 0), (0x35, 1, 0, LAST + 1), (0x06, 0, 0, 0x7FFF_0000), (0x06, 0, 0, 0x0005_0000 | errno.ENOSYS),
    ]  # fmt: skip
    made = assemble(X86_64, {}, last=LAST, beyond=refuse(errno.ENOSYS))
    assert list(struct.iter_unpack("=HBBI", made)) == expected
