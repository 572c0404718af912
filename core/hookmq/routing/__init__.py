"""Find a message's recipients: the subscription tree, routes, shared subscriptions and retained messages."""
