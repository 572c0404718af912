"""A simulator of a cluster: whole brokers on a simulated log and one virtual clock. One seed is one run."""

from cluster_simulator.run import Result, run

__all__ = ["Result", "run"]
