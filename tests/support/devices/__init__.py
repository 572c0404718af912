"""Publishing devices, a broker with the Spark sink, and Spark queries that write tables, all killed at random.

The devices keep a ledger of acknowledged messages. `fleet` contains the devices, `parts` the processes, and `judging`
the checks of the tables. `runs` determines the sequence of kills.
"""
