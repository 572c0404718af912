"""Brokers that are killed under load, and clients that record the guarantees they received.

`ledger` records messages sent, acknowledged and delivered, and finds violations. `client` contains clients that keep
their sessions over any number of connections. `brokers` contains the brokers, and `rounds` determines the sequence of
kills. `table` compares the losses of several brokers for a page of the manual.
"""
