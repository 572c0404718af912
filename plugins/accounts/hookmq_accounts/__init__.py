"""Users, groups and access rules that change while the broker is running."""
