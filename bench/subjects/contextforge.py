"""Starts ContextForge before a stdio server, as its documentation has it: `contextforge.py PORT FOLDER SERVER SECRET`.

Its own `translate` puts the server behind HTTP; then that address is registered, once. Runs until both are killed.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

import httpx


def main(port: int, folder: Path, server: str, secret: str) -> None:
    env = os.environ | {
        "JWT_SECRET_KEY": secret,
        "AUTH_ENCRYPTION_SECRET": secret,
        "BASIC_AUTH_PASSWORD": secret,
        "PLATFORM_ADMIN_EMAIL": "admin@example.com",
        "PLATFORM_ADMIN_PASSWORD": f"{secret}-Aa1",
        "DATABASE_URL": f"sqlite:///{folder}/contextforge.db",
        "SSRF_ALLOW_LOCALHOST": "true",
        "SSRF_ALLOW_PRIVATE_NETWORKS": "true",
        "USE_STATEFUL_SESSIONS": "true",
        "MCPGATEWAY_UI_ENABLED": "false",
    }
    python, is_new = sys.executable, not (folder / "contextforge.db").exists()
    bridge = ["-m", "mcpgateway.translate", "--expose-streamable-http", "--port", str(port + 1), "--stdio", server]
    subprocess.Popen([python, *bridge], env=env)
    gateway = subprocess.Popen(
        [Path(python).parent / "mcpgateway", "--host", "127.0.0.1", "--port", str(port)], env=env
    )
    make = [python, "-m", "mcpgateway.utils.create_jwt_token", "--username", "admin@example.com", "--admin"]
    made = subprocess.run([*make, "--secret", secret], env=env, capture_output=True, text=True, check=True)
    token = made.stdout.split()[-1]
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {token}"}) as http:
        entry = {"name": "demo", "url": f"http://127.0.0.1:{port + 1}/mcp", "transport": "STREAMABLEHTTP"}
        while is_new and not _registered(http, entry):
            time.sleep(0.5)
    (folder / "token").write_text(token, encoding="utf-8")
    gateway.wait()


def _registered(http: httpx.Client, entry: dict[str, str]) -> bool:
    try:
        return http.post("/gateways", json=entry, timeout=20).status_code < 300
    except httpx.HTTPError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4])
