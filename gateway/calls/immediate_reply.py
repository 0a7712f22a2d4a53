"""Define a reply that is complete from the start."""

from gateway.calls.live_session import LiveSession
from gateway.observability.observed_call import LogFacts
from session_store.session import redact
from transports.inbound_port import HeaderList, UnrecordedAnswer
from transports.reply_queue import Frame, ReplyQueue


class ImmediateReply(UnrecordedAnswer):
    """A reply whose answer is known at once, without a call to a server. `data` is the JSON-RPC response. `live` is the
    session of the request, or None. For the log line, `log_facts` are additional fields, and `why` is the message of an
    error."""

    def __init__(
        self,
        data: bytes,
        headers: HeaderList | None = None,
        error_code: int | None = None,
        live: LiveSession | None = None,
        why: str = "",
        log_facts: LogFacts | None = None,
    ) -> None:
        self.headers: HeaderList = headers or []
        self.log_facts: LogFacts = log_facts or ({} if live is None else {"session": redact(live.session.id)})
        self.why = why
        self.error_code = error_code
        self.replies = ReplyQueue()
        self.replies.push(Frame(data, final=True, error_code=error_code))
        if live is not None and live.recorder is not None:
            live.recorder.to_client(data)

    def cancel(self, reason: str) -> None:
        """Do nothing: the answer is complete."""

    is_doubtful = False

    def done(self) -> None:
        """Do nothing: there is nothing to release."""
