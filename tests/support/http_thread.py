"""HTTP servers of the standard library, in a thread of the test's own process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    """Writes no log."""

    def respond(self, status: int, kind: str = "text/plain", body: bytes = b"") -> None:
        """Send a whole response; to HEAD without its body."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """What matters is in the test's own record."""


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    """The port, until the end of the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
