"""`make cluster`: Redis, three gateways with the demo server and HAProxy, as processes, until Ctrl-C."""

import signal
import sys

from tests.support.compose_topology import running_topology
from tests.support.gateway_process import DEMO, server


def main() -> None:
    with running_topology({"demo": server(DEMO)}) as topology:
        sys.stderr.write(f"ready {topology.url}\n")
        for gateway in topology.gateways:
            sys.stderr.write(f"  gateway {gateway.pid}: {gateway.url}\n")
        signal.sigwait({signal.SIGINT, signal.SIGTERM})


if __name__ == "__main__":
    main()
