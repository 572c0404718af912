"""A cluster whose brokers and NATS servers are killed and stopped under load, and clients that record its guarantees.

`nodes` contains the processes, and `rounds` the clients and the sequence of faults.
"""
