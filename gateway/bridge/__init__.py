"""Translation between the eras of the protocol: calls, questions, subscriptions and `requestState`."""
