"""Durable state: records, the store and journal protocols, and group commit at a single commit point."""
