"""A stdio server of one era: `single_era_server.py legacy|modern COMMAND…`.

Runs a command, withholds the first message of the other era from it, and answers that message with "Method not found",
as a server does that does not know it.
"""

import json
import subprocess
import sys

REFUSED = {"legacy": "server/discover", "modern": "initialize"}[sys.argv[1]]


def main() -> int:
    child = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE)
    assert child.stdin is not None
    for line in sys.stdin.buffer:
        message = json.loads(line)
        if message.get("method") == REFUSED:
            error = {"code": -32601, "message": "Method not found"}
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}) + "\n")
            sys.stdout.flush()
        else:
            child.stdin.write(line)
            child.stdin.flush()
    child.stdin.close()
    return child.wait()


if __name__ == "__main__":
    sys.exit(main())
