"""Run many seeds in several processes."""

import multiprocessing
from collections.abc import Iterator

from simulator.generate import make_plan
from simulator.process import Result
from simulator.world import run


def run_seed(seed: int) -> Result:
    """Return the result of one seed. An exception of the simulator itself also counts as a failure."""
    try:
        return run(make_plan(seed))
    except Exception as error:
        return Result(seed, "simulator", repr(error))


def run_seeds(seeds: range, workers: int) -> Iterator[Result]:
    """Yield the results of many seeds as they complete."""
    if workers < 2:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=5)
