"""A stdio server of one era: `one_era.py legacy|modern COMMAND…` runs a command and keeps the other era's first message
from it, which is answered as a server answers that knows no better."""

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
