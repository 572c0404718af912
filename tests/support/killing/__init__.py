"""Brokers that are killed under load, and clients that keep count of what they were promised.

`ledger` what was sent, acknowledged and delivered, and what of that is wrong; `client` clients that keep their sessions
over any number of connections; `brokers` who is killed; `rounds` one kill after the other; `table` what several brokers
lose, and the page of the manual that shows it.
"""
