"""Many seeds, on several processes."""

import multiprocessing
from collections.abc import Iterator

from simulator.generate import make_plan
from simulator.process import Result
from simulator.world import run


def run_seed(seed: int) -> Result:
    """The result of one seed; what the simulator itself raises is a failure as well."""
    try:
        return run(make_plan(seed))
    except Exception as error:
        return Result(seed, "simulator", repr(error))


def run_seeds(seeds: range, workers: int) -> Iterator[Result]:
    """The results of many seeds, as they come."""
    if workers < 2:
        yield from map(run_seed, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(run_seed, seeds, chunksize=5)
