"""The broker's data types: messages, subscriptions, clients, settings and errors."""
