"""From devices to tables, all of it killed: publishers that keep a ledger of what was acknowledged, a broker with the
Spark sink, its reader process, a driver of Spark and its executors.

`fleet` the devices; `parts` the processes; `judging` what must hold of the tables; `runs` one kill after the other.
"""
