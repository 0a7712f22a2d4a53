"""What an error of Redis says about a further try. Pure."""

from typing import Final

from session_store.ports.errors import StoreUnavailable
from session_store.redis.connection import ServerError

__all__ = ["refuses_always"]

_PASSING: Final = frozenset(
    "BUSY CLUSTERDOWN LOADING MASTERDOWN MISCONF NOAUTH NOPERM NOREPLICAS NOSCRIPT OOM READONLY TRYAGAIN".split()
)
"""Codes of what the server cannot do now, or what its operator can mend."""
_OF_SCRIPTS: Final = ("user_script", "unning script", "Protocol error", "ERR The ID", "ERR Invalid stream ID")


def refuses_always(failure: StoreUnavailable) -> bool:
    """Whether Redis refuses this call of a script because of its arguments, or of the data at its keys.

    Redis 6 puts the error of a command into the text of the script's own error, so the whole text is searched for a
    code. An error that is not known may be of a proxy that cannot reach Redis: a further try may succeed.
    """
    if not isinstance(failure.__cause__, ServerError):
        return False
    text = str(failure.__cause__)
    codes = set(text.replace("-", " ").split())
    if codes & _PASSING:
        return False
    return "WRONGTYPE" in codes or (text.startswith("ERR ") and any(words in text for words in _OF_SCRIPTS))
