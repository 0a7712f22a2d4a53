"""What the gateway starts for a session: gives its descriptors to a fork of everything.py and stays until that ends.

`argv[2]` may be `legacy`: a server that knows the handshake era only.
"""

import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [b"\1" if "legacy" in sys.argv else b"\0"], [0, 1, 2])
    for fd in (0, 1):
        os.close(fd)
    connection.recv(1)
