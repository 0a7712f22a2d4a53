"""Send requests to servers, and track all that is in flight: calls, conversations with servers, live sessions, and
servers' questions to clients."""
