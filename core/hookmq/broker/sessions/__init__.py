"""The life cycle of sessions, with their subscriptions, wills and permissions."""
