"""Joins several brokers to one, on NATS JetStream."""
