"""The deadlines of a conversation, in seconds."""

from dataclasses import dataclass

__all__ = ["Deadlines"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    """The times of one upstream's conversations.

    `start_s`: until a link is open, handshake included. `noise_s`: until then, from the first line on that is no
    message (`gateway.calls.link`). `call_s`: until a call is answered, counted from the last message that belongs
    to it. `suspended_s`: until a modern client answers what a legacy server has asked. `idle_stop_s`: until a link
    without calls is closed; None: never. `unreturned_stop_s`: the same in a session to which its client has not come
    back.
    """

    start_s: float
    noise_s: float = 5.0
    call_s: float
    suspended_s: float
    idle_stop_s: float | None
    unreturned_stop_s: float | None = None

    def idle_stop(self, unreturned: bool) -> float | None:
        """Until a link without calls is closed. `unreturned`: the client has not come back to its session yet."""
        return self.unreturned_stop_s if unreturned else self.idle_stop_s
