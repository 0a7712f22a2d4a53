"""The three tools of tasks as clients list them. What they do is in `gateway.relay.task_tools`. Pure."""

from typing import Any, Final

import msgspec

from gateway.calls.exchange import Exchange
from transports.jsonrpc import Object, encode

__all__ = ["ARGUMENTS", "MAX_WAIT_S", "NAMES", "RESULT", "START", "STATUS", "with_task_tools"]

START, STATUS, RESULT = "start_task", "task_status", "task_result"

MAX_WAIT_S: Final = 25.0
"""How long `task_result` waits at most: shorter than what clients and proxies wait for an answer."""

_TASK: Final = {"type": "string", "description": f"The task, as {START} gave it."}
_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "name": START,
        "description": f"Start a slow tool call and go on. Fetch its result with {RESULT}.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "tool": {"type": "string", "description": "The name of the tool, as listed."},
                "arguments": {"type": "object", "description": "The arguments of the tool."},
            },
            "required": ["tool"],
            "additionalProperties": False,
        },
    },
    {
        "name": STATUS,
        "description": "Tell how far a task is, without waiting.",
        "inputSchema": {
            "type": "object",
            "properties": {"task": _TASK},
            "required": ["task"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": RESULT,
        "description": "The result of a task. Waits for it for a while; call again if the task still works.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "task": _TASK,
                "wait_s": {"type": "number", "description": f"Seconds to wait, at most {MAX_WAIT_S:g}. Default: 10."},
            },
            "required": ["task"],
            "additionalProperties": False,
        },
        "annotations": {"readOnlyHint": True},
    },
]
ARGUMENTS: Final = {tool["name"]: frozenset(tool["inputSchema"]["properties"]) for tool in _TOOLS}
"""The arguments of each tool, by its name."""
NAMES: Final = frozenset(ARGUMENTS)
"""A tool of a server that has one of these names is hidden."""


class _Named(msgspec.Struct):
    name: str = ""


def _is_ours(tool: msgspec.Raw) -> bool:
    """Whether a tool of a server has the name of one of the three."""
    try:
        return msgspec.json.decode(tool, type=_Named).name in NAMES
    except msgspec.MsgspecError:
        return False


def with_task_tools(_: Exchange, result: Object) -> Object:
    """A page of a list of tools, without servers' tools that have the names of the three; on the last page, these
    follow."""
    if "tools" not in result:
        return result
    listed = msgspec.json.decode(result["tools"], type=list[msgspec.Raw])
    others = [tool for tool in listed if not _is_ours(tool)]
    if "nextCursor" in result:
        return result if len(others) == len(listed) else result | {"tools": msgspec.Raw(encode(others))}
    return result | {"tools": msgspec.Raw(encode([*others, *_TOOLS]))}
