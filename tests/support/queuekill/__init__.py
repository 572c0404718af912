"""A broker with queues, and its consumers, all killed repeatedly under load.

`worker` is the consumers' program, which writes each delivery and acknowledgement to standard output before it does
anything else. `evidence` finds broken guarantees in these lines. `rounds` contains the sequence of kills.
"""
