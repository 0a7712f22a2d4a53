"""Send requests to servers, and track all that is in flight: exchanges, conversations, live sessions, questions."""
