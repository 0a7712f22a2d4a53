"""Record which tools a session's client has seen, as hashes in a compact value that sessions share. Pure: no I/O."""

import functools
import hashlib
from collections.abc import Mapping
from itertools import islice
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from gateway.protocol.item_digests import FORM_BYTES
from gateway.protocol.merged_lists import MOST_TOOLS

_NAME_BYTES: Final = 6
_ENTRY_BYTES: Final = _NAME_BYTES + FORM_BYTES
"""Bytes of one tool in a record: the hash of its name and its form (hash of its content). Two names with the same hash
count as a changed tool, never as the same one."""

_texts = msgspec.json.Decoder(dict[str, bytes])

Listed = tuple[tuple[str, bytes], ...]
"""The names and forms (hashes, `gateway.protocol.item_digests.form_of`) of the tools in one page of a server's list."""


class ShownTools:
    """The tools that servers have listed to a session, each in the form (hash of its content) that it had first.

    Make instances with `read`, `with_page` or `with_tool` only: equal values are then one object, so that each session
    costs only a reference. `text` is the value as text, for the session's record.
    """

    __slots__ = ("__weakref__", "_servers", "text")

    def __init__(self, servers: Mapping[str, Mapping[bytes, bytes]]) -> None:
        self._servers = servers
        packed = {name: b"".join(key + form for key, form in sorted(tools.items())) for name, tools in servers.items()}
        self.text = msgspec.json.encode(packed, order="sorted").decode() if servers else ""

    @staticmethod
    def read(text: str) -> "ShownTools":
        """Return the tools in the record of a session. Raises `ValueError`: `text` is not that of a `ShownTools`."""
        if (known := _shared.get(text)) is not None:
            return known
        packed = _texts.decode(text) if text else {}
        return _shared.setdefault(text, ShownTools({server: _unpacked(tools) for server, tools in packed.items()}))

    def has_list_of(self, server: str) -> bool:
        """Return True if the session was shown a tool of the server."""
        return server in self._servers

    def form(self, server: str, name: str) -> bytes | None:
        """Return the form (hash) in which the session has seen a tool; None if it has seen no tool with this name."""
        return self._servers[server].get(_key(name)) if server in self._servers else None

    def with_page(self, server: str, tools: Listed) -> "ShownTools":
        """Return these tools together with `tools`, those of a page of the server's list, up to `MOST_TOOLS` of the
        server. A tool keeps the form that it had first. Tools without a form are left out."""
        before = self._servers.get(server, {})
        page = {_key(name): form for name, form in reversed(tools) if form}
        if page.keys() <= before.keys():
            return self
        return _merged(self._servers, server, dict(islice({**before, **page, **before}.items(), MOST_TOOLS)))

    def with_tool(self, server: str, name: str, form: bytes) -> "ShownTools":
        """Return these tools, with the tool `name` in the given form, which must not be empty."""
        return _merged(self._servers, server, {**self._servers.get(server, {}), _key(name): form})


def _merged(servers: Mapping[str, Mapping[bytes, bytes]], server: str, tools: Mapping[bytes, bytes]) -> ShownTools:
    found = ShownTools({**servers, server: tools})
    return _shared.setdefault(found.text, found)


def _unpacked(packed: bytes) -> dict[bytes, bytes]:
    if len(packed) % _ENTRY_BYTES:
        raise ValueError("the tools that a session was shown are damaged")
    entries = (packed[at : at + _ENTRY_BYTES] for at in range(0, len(packed), _ENTRY_BYTES))
    return {entry[:_NAME_BYTES]: entry[_NAME_BYTES:] for entry in entries}


@functools.lru_cache(maxsize=16_384)
def _key(name: str) -> bytes:
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()[:_NAME_BYTES]


_shared: Final[WeakValueDictionary[str, ShownTools]] = WeakValueDictionary()
NOTHING: Final = ShownTools.read("")
"""The value of a session that was not shown any tools."""
