"""A client's session and its messages in flight. Plain state without a clock or I/O."""
