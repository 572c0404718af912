"""A broker with queues, and its consumers, which are killed again and again under load.

`worker` is the program of the consumers: it writes each delivery and each acknowledgement to its standard output before
anything else happens. `evidence` finds broken guarantees in these lines. `rounds` contains the sequence of kills.
"""
