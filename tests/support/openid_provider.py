"""A certified OpenID provider (`authorization_server.mjs`) in a process of its own, and people who log in there."""

import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import urljoin

import httpx

from tests.support.free_ports import free_port
from tests.tools.obtain import node, npm_packages

_PACKAGES: Final = {"oidc-provider": "9.13.3"}


@contextlib.contextmanager
def running_provider(*resources: tuple[str, int]) -> Iterator[str]:
    """The issuer's URL, until the end of the block. `resources`: what tokens are for, and for how many seconds they are
    valid."""
    port, folder = free_port(), npm_packages(_PACKAGES)
    script = folder / "authorization_server.mjs"  # beside node_modules, which is where imports are looked for
    shutil.copy(Path(__file__).with_name("authorization_server.mjs"), script)
    command = [str(node()), str(script), str(port), *(str(part) for resource in resources for part in resource)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as provider:
        try:
            assert provider.stdout is not None and provider.stdout.readline().strip() == "ready"
            yield f"http://localhost:{port}"
        finally:
            provider.terminate()


class _Form(HTMLParser):
    """The form of a page: where it goes and what it says."""

    def __init__(self, page: httpx.Response) -> None:
        super().__init__()
        self.action, self.fields = "", dict[str, str]()
        self.feed(page.text)
        self.action = urljoin(str(page.url), self.action)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        if tag == "form":
            self.action = found["action"]
        elif tag == "input" and "name" in found:
            self.fields[found["name"]] = found.get("value", "")


def log_in(url: str, name: str, back: str) -> str:
    """Do what a person does in a browser: log in and consent. Return the address that leads back, which begins with
    `back` and is not opened."""
    with httpx.Client(timeout=30) as browser:
        page = browser.get(url)
        for _ in range(12):
            if page.is_redirect:
                target = urljoin(str(page.url), page.headers["location"])
                if target.startswith(back):
                    return target
                page = browser.get(target)
                continue
            assert page.status_code == 200, page.text
            form = _Form(page)
            asked = {key: name if key == "login" else value or "x" for key, value in form.fields.items()}
            page = browser.post(form.action, data=asked)
    raise AssertionError("the provider never sent anybody back")
