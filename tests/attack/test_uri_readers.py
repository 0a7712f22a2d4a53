"""What a policy restricts stays restricted however the libraries that servers use read a URI."""

import json
import posixpath
import random
import subprocess
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest
from pydantic import AnyUrl, ValidationError

from gateway.protocol.uris import forms, with_plain_host
from tests.requirements import requirement
from tests.tools.obtain import node

pytestmark = requirement("wall.uri")

RESTRICTED: Final = ("notes://all/private", "file:///pub/secret", "http://internal/x", "http://127.0.0.1/x")
BEGINNINGS: Final = "notes://all notes: file:// file: file:/// http:// http: HTTP:/ Notes://ALL".split()
PIECES: Final = (
    *"private pri vate pub secret sec ret internal in ternal 127.0.0.1 127.1 2130706433 0x7f.1 x a all".split(),
    *"localhost user@ :80 :080 :8080 / / / // \\ . .. /../ /./ %2e%2e %2E %2f %5c %3f %23 %252e %09 %0a".split(),
    *"? # ; %ff | %70".split(),
    *("\t", "\n", "\r", "\0", " ", "\u3002", "\uff0e", "\uff0f", "\u00ad", "\u200b", "[::1]", "\x7f", "\ufeff"),
)
READ: Final = """
const uris = JSON.parse(require("fs").readFileSync(0, "utf8"));
console.log(JSON.stringify(uris.map((uri) => { try { return new URL(uri).href } catch { return "" } })));
"""


def uris(seed: int, count: int) -> Iterator[str]:
    made = random.Random(seed)
    for _ in range(count):
        if made.random() < 0.5:
            yield made.choice(BEGINNINGS) + "".join(made.choices(PIECES, k=made.randint(1, 7)))
        else:  # a restricted one, with something in it
            target = made.choice(RESTRICTED)
            for _ in range(made.randint(1, 3)):
                at = made.randint(0, len(target))
                target = target[:at] + made.choice(PIECES) + target[at:]
            yield target


def by_pydantic(uri: str) -> str:
    try:
        return str(AnyUrl(uri))
    except (ValidationError, UnicodeError):
        return ""


def by_urllib(uri: str) -> str:
    """As a file system reads the path."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return ""
    path = posixpath.normpath(unquote(parts.path)) if parts.path else ""
    has_host = bool(parts.netloc) or (parts.scheme == "file" and path.startswith("/"))
    return f"{parts.scheme}:{'//' * has_host}{parts.netloc}{path}"


def is_restricted(read: str) -> bool:
    """Whether a server that has read a URI so would give what is restricted."""
    return any(form.startswith(RESTRICTED) for form in (read, unquote(read), with_plain_host(unquote(read))))


def is_hidden(uri: str) -> bool:
    """Whether a policy that restricts these resources hides the URI."""
    found = forms(uri)
    return found is None or any(form.startswith(RESTRICTED) for form in (*found, *map(with_plain_host, found)))


@requirement("wall.decoded")
@pytest.mark.parametrize("seed", range(4))
def test_what_is_restricted_is_so_for_every_reader(seed: int) -> None:
    given = [uri for uri in uris(seed, 10_000) if uri.isprintable() or uri.isascii()]
    asked = subprocess.run([node(), "-e", READ], input=json.dumps(given), capture_output=True, text=True, check=True)
    readings = {
        "WHATWG": json.loads(asked.stdout),
        "pydantic": map(by_pydantic, given),
        "urllib": map(by_urllib, given),
    }
    met = 0
    for reader, read in readings.items():
        for uri, found in zip(given, read, strict=True):
            if is_restricted(found):
                met += 1
                assert is_hidden(uri), f"{reader} reads {uri!r} as {found!r}: {forms(uri)}"
    assert met > 500, "the readers have met what is restricted"


@pytest.mark.parametrize(
    "uri",
    [
        *(
            "notes://all/pri\tvate-salaries",
            "file:///pub/.\t./secret/b",
            "notes://all/a\n",
            " notes://all/a",
            "n\0://a",
        ),
        *("notes://all/%09a", "notes://all/a\x85", "notes:a/../b", "notes://all/x/../b?/../..", "notes://all/a//../b"),
        *("notes://all/a%2fb/../c", "notes://all/%252e%252e/../b", "http://b\u00fccher/x", "http://internal./x"),
        *("http://0x7f.1/x", "http://2130706433/x", "http://[0:0::1]/x", "notes://all/%ff"),
    ],
)
def test_a_uri_that_readers_read_in_several_ways_does_not_exist(uri: str) -> None:
    assert forms(uri) is None


@pytest.mark.parametrize(
    "uri",
    [
        *("notes://all/a b", "note:x", "postgres://user@host:5432/db/table/schema", "https://example.com:8443/a?b=c#d"),
        *(
            "file:///home/me/a;b",
            "urn:isbn:0451450523",
            "data:text/plain,hello",
            "db://t/{id}",
            "http://{host}/{+path}",
        ),
        *(
            "https://example.com{?q}",
            "http://[::1]:8080/x",
            "http://127.0.0.1/x",
            "ui://app/\U0001f600",
            "memo://d?x=1",
        ),
    ],
)
def test_usual_uris_are_read_as_they_are_written(uri: str) -> None:
    assert forms(uri) == (uri,)


def test_a_host_is_compared_without_what_does_not_name_it() -> None:
    assert with_plain_host("HTTP://me:pw@Internal:080/X") == "http://internal/X"
    assert with_plain_host("DB://Me@Host:80/X") == "db://me@host:80/X" and with_plain_host("NOTE:X") == "note:X"
    assert forms("file://localhost/etc/x") == ("file://localhost/etc/x", "file:///etc/x")
    assert forms("http:\\\\internal\\x") == ("http:\\\\internal\\x", "http://internal/x")
