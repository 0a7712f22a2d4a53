"""The client that the suite's client scenarios start: lists tools and calls each, through a gateway before the suite's
server. `argv[-1]`: that server's URL."""

import sys

import httpx

from tests.support.raw import Modern, messages
from tests.support.running import running_gateway


def main() -> None:
    with running_gateway({"suite": {"url": sys.argv[-1]}}) as gateway, httpx.Client(timeout=20) as http:
        client = Modern(gateway.url, http)
        listed = messages(client.send("tools/list"))[-1]
        sys.stderr.write(f"listed {listed}\n")
        # What is listed may be called; a tool that is left out is asked for as well, for that is where it is checked.
        for name in {"lookup_user", *(tool["name"] for tool in listed["result"]["tools"])}:
            sys.stderr.write(f"{name}: {client.tool(name, {'id': 'a-1', 'profile': {}}).text}\n")


if __name__ == "__main__":
    main()
