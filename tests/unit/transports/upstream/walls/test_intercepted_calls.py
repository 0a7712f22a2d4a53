"""What the gate copies from a process."""

import ctypes
import errno
import os
import socket
import threading
from typing import Any

import pytest

from tests.requirements import requirement
from transports.upstream.walls.intercepted_calls import duplicate, read_memory

pytestmark = requirement("box.network")


@pytest.mark.parametrize("knows_threads", [True, False], ids=["Linux 6.9", "before"])
def test_a_descriptor_of_a_thread_is_duplicated(monkeypatch: pytest.MonkeyPatch, knows_threads: bool) -> None:
    of_process = os.pidfd_open

    def pidfd_open(pid: int, flags: int = 0) -> int:
        if flags and not knows_threads:
            raise OSError(errno.EINVAL, "unknown flag")
        return of_process(pid, flags)

    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    done = threading.Event()
    thread = threading.Thread(target=done.wait, args=(10,))
    thread.start()
    assert thread.native_id is not None
    try:
        with socket.socket() as original, socket.socket(fileno=duplicate(thread.native_id, original.fileno())) as copy:
            assert copy.fileno() != original.fileno() and os.path.sameopenfile(copy.fileno(), original.fileno())
        with pytest.raises(OSError) as failed:
            duplicate(thread.native_id, 9_999)
        assert failed.value.errno == errno.EBADF
    finally:
        done.set()
        thread.join()


def test_memory_is_copied_whole_or_not_at_all() -> None:
    buffer: Any = ctypes.create_string_buffer(b"an address", 10)
    address = ctypes.addressof(buffer)
    assert read_memory(os.getpid(), address, 10) == b"an address"
    for wrong in (0, 8, 2**63 + 8, 2**64 - 1):
        with pytest.raises(OSError) as failed:
            read_memory(os.getpid(), wrong, 16)
        assert failed.value.errno == errno.EFAULT
