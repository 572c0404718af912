"""A broker with queues and the broker's consumers, all of which are killed repeatedly under load.

`worker` is the consumers' program, which writes each delivery and acknowledgement to standard output before it does
anything else. `evidence` finds broken guarantees in this output. `rounds` determines the sequence of kills.
"""
