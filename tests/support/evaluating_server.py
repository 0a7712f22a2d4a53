"""The server `probe_server` with one more tool: `python` evaluates `code` and answers with its value or its error."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

if not __package__:
    sys.path.insert(0, f"{sys.path[0]}/../..")

from tests.support import probe_server


def evaluate(arguments: dict[str, Any], _: dict[str, Any]) -> str:
    names = {"Path": Path, "os": os, "socket": socket, "subprocess": subprocess, "sys": sys}
    try:
        return str(eval(arguments["code"], names))
    except Exception as error:
        return type(error).__name__


if __name__ == "__main__":
    probe_server.TOOLS["python"] = evaluate
    probe_server.main()
