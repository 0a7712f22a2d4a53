"""Decides which servers one URL serves, and which of them a session may see."""

import functools
from collections.abc import Mapping, Sequence
from typing import Final

from gateway.policy.decisions import Policy
from gateway.upstreams.upstream import ConfiguredUpstream
from session_store import Context

__all__ = ["VisibleServers"]

_CACHED_CONTEXTS: Final = 1_024


class VisibleServers:
    """The servers of one endpoint, by name. `only` is the one server of an endpoint that has no others."""

    def __init__(self, upstreams: Sequence[ConfiguredUpstream], policy: Policy) -> None:
        self.all: Mapping[str, ConfiguredUpstream] = {upstream.name: upstream for upstream in upstreams}
        self.only: ConfiguredUpstream | None = upstreams[0] if len(upstreams) == 1 else None
        self._policy = policy
        self._seen = functools.lru_cache(maxsize=_CACHED_CONTEXTS)(self._to)

    @property
    def differ(self) -> bool:
        """Whether different sessions may see different servers."""
        return not self._policy.is_open

    def to(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        """The servers that a session with this context sees, by name."""
        return self.all if self._policy.is_open else self._seen(self._policy.rights_of(context))

    def _to(self, context: Context) -> Mapping[str, ConfiguredUpstream]:
        return {name: upstream for name, upstream in self.all.items() if self._policy.sees(context, name)}
