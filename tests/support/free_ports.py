"""TCP ports for the processes of tests."""

import random
import socket
from typing import Final

# Below the ports that systems give to outgoing connections (32768 on Linux): none of these can take one that was found.
_PORTS: Final = range(10_000, 32_000)
_given: set[int] = set()
_random = random.SystemRandom()  # test processes run side by side, and must not draw the same ports


def free_port() -> int:
    """A TCP port that nothing listened on a moment ago, and that was not given before."""
    return free_ports(1)[0]


def free_ports(count: int) -> range:
    """So many ports in a row, each as above."""
    while True:
        first = _random.choice(_PORTS)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and all(_is_free(port) for port in ports):
            _given.update(ports)
            return ports


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
