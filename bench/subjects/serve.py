"""Serves an ASGI app as the gateway is served: uvicorn with uvloop and httptools, one process."""

import socket
import sys

import uvicorn


def main(app: str) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws="none", server_header=False)
        sys.stderr.write(f"ready http://127.0.0.1:{listener.getsockname()[1]}/mcp\n")
        sys.stderr.flush()
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
