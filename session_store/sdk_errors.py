"""Errors that the caller of a tool may read, raised so that the official SDK passes their text on.

`MCPServer` of SDK 2 gives its client the text of `ToolError` and `ResourceError` only: of any other error the client
gets "Error executing tool NAME".
"""

import functools
import sys
from types import TracebackType
from typing import Any, Final

from session_store.limits import InvalidState
from session_store.metadata import InvalidMetadata

__all__ = ["READABLE_BY_CALLERS"]

_SDK_ERRORS: Final = "mcp.server.mcpserver.exceptions"
"""The module of the SDK with these classes. It is never imported here: children that do without the SDK start in a
tenth of the time. In a process whose server is an `MCPServer`, it is loaded."""


class _ReadableByCallers:
    """In the block, `InvalidState` and `InvalidMetadata` are also raised as errors that `MCPServer` passes on."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, InvalidState | InvalidMetadata) and _SDK_ERRORS in sys.modules:
            own: Any = type(error)
            kind = _passed_on(own)
            # Without `__init__`: a subclass of a store may have other parameters.
            raise kind.__new__(kind, *error.args).with_traceback(trace) from None


READABLE_BY_CALLERS: Final = _ReadableByCallers()


@functools.cache
def _passed_on(kind: type[ValueError]) -> type[ValueError]:
    """A subclass of `kind` that `MCPServer` passes on from tools and from resources."""
    sdk = sys.modules[_SDK_ERRORS]
    bases = [getattr(sdk, name, None) for name in ("ToolError", "ResourceError")]
    theirs = [base for base in bases if base is not None and not issubclass(kind, base)]
    return type(kind.__name__, (kind, *theirs), {"__module__": kind.__module__, "__doc__": kind.__doc__})
