"""The command of the suite's client scenarios: the SDK's client at a gateway in front of the suite's server.

`client_through.py CLIENT [REVISION] URL`: runs the script CLIENT with the gateway's URL in place of URL. With a
REVISION the client speaks that one, whatever the suite's server speaks.
"""

import os
import subprocess
import sys

from tests.support.gateway_process import running_gateway


def main() -> int:
    client, *revision, url = sys.argv[1:]
    spoken = {"MCP_CONFORMANCE_PROTOCOL_VERSION": revision[0]} if revision else {}
    with running_gateway({"tested": {"url": url}}) as gateway:
        command = [sys.executable, client, gateway.url]
        return subprocess.run(command, env={**os.environ, **spoken}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
