"""Build the errors that clients get about tasks (`gateway.errors` has the codes)."""

from gateway.errors import OUTCOME_UNKNOWN, TOO_OFTEN
from transports.inbound_port import Refused
from transports.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY


class UnknownTask(Refused):
    """Refuses a request about a task that the client may not see: its id is forged, expired, or of another principal,
    endpoint or server, or its session has ended. The answer is the same in all cases, to reveal nothing about other
    tasks."""

    def __init__(self) -> None:
        super().__init__(
            200,
            INVALID_PARAMS,
            "Unknown task. It may have expired, or its session may have ended.",
            reason="unknown_task",
        )


def tasks_not_declared(what: str) -> Refused:
    """Return the refusal of a request for which the client must declare the tasks extension, but does not (ext-tasks,
    Protocol Errors). `what` begins the error's message, and says why the extension is needed: for example, "tasks/get
    is about a task"."""
    return Refused(
        400,
        MISSING_CAPABILITY,
        f"{what}, and the request does not declare the extension io.modelcontextprotocol/tasks.",
        data={"requiredCapabilities": {"extensions": {"io.modelcontextprotocol/tasks": {}}}},
    )


def unreadable_task(server: str) -> Refused:
    """Return the error that answers a call if its server has created a task for it with an unusable id: missing, empty
    or too long for a handle. `server` is the server's name."""
    return Refused(
        200,
        OUTCOME_UNKNOWN,
        f"server {server!r} has made a task with an id that cannot be used",
        reason="outcome_unknown",
    )


def task_is_over(status: str) -> Refused:
    """Return the refusal to cancel a task that has already ended (MCP 2025-11-25, Tasks §Task Cancellation). `status`
    says how it has ended, such as `completed`."""
    return Refused(200, INVALID_PARAMS, f"Cannot cancel the task: it is {status} already.", reason="task_is_over")


def no_task_of(tool: str) -> Refused:
    """Return the refusal to run a call as a task, because its tool forbids tasks (MCP 2025-11-25, Tasks §Tool-Level
    Negotiation)."""
    return Refused(
        200,
        METHOD_NOT_FOUND,
        f"Tool {tool} is not to be called as a task. Call it without params.task.",
        reason="no_task_of_tool",
    )


def too_many_tasks() -> Refused:
    """Return the refusal to create a task, because its session or principal has the maximum number of tasks."""
    return Refused(429, TOO_OFTEN, "Too many tasks are stored: wait until some have expired.", reason="too_many_tasks")
