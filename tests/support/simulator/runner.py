"""Run many seeds in several processes."""

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial

from simulator.generate import make_plan
from simulator.plan import Plan
from simulator.process import Result
from simulator.world import run


def run_seed(seed: int, make: Callable[[int], Plan] = make_plan) -> Result:
    """Return the result of one seed. An exception raised by the simulator itself also counts as a failure."""
    try:
        return run(make(seed))
    except Exception as error:
        return Result(seed, "simulator", repr(error))


def run_seeds(
    seeds: range, workers: int, make: Callable[[int], Plan] = make_plan
) -> Iterator[Result]:
    """Yield the results of many seeds as they complete."""
    if workers < 2:
        yield from map(partial(run_seed, make=make), seeds)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        yield from pool.imap_unordered(partial(run_seed, make=make), seeds, chunksize=5)
