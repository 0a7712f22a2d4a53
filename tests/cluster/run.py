"""`make cluster`: Redis, three gateways with the demo server and HAProxy, as processes, until Ctrl-C or SIGTERM."""

import contextlib
import signal
import sys
from typing import Any

from tests.support.compose_topology import running_topology
from tests.support.gateway_process import DEMO, server


def _stop(*_: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # all processes are being ended
    raise KeyboardInterrupt


def main() -> None:
    signal.signal(signal.SIGTERM, _stop)
    with contextlib.suppress(KeyboardInterrupt), running_topology({"demo": server(DEMO)}) as topology:
        sys.stderr.write(f"ready {topology.url}\n")
        for gateway in topology.gateways:
            sys.stderr.write(f"  gateway {gateway.pid}: {gateway.url}\n")
        sys.stderr.flush()
        while True:
            signal.pause()


if __name__ == "__main__":
    main()
