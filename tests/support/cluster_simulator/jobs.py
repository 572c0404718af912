"""Runs seeds, in several processes if asked. New processes import this module, but not `__main__`."""

import gc
import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cluster_simulator.run import Result, run

CHUNK: Final = 20
"""Runs between two collections of garbage."""


def run_seed(seed: int) -> Result:
    """Return the result of one seed. An exception counts as a broken promise."""
    try:
        return run(seed)
    except Exception:
        return Result(seed, (traceback.format_exc(limit=-6),), (), Counter(), 0, 0, 0, 0)


def run_chunk(seeds: range) -> list[Result]:
    """Return the results of a few seeds. The garbage collector costs a fifth of the time, so it runs once."""
    gc.disable()
    results = [run_seed(seed) for seed in seeds]
    gc.collect()
    return results


def results_of(seeds: range, jobs: int) -> Iterator[Result]:
    """Yield the results of all seeds as they complete."""
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if jobs < 2:
        for chunk in chunks:
            yield from run_chunk(chunk)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for results in pool.imap_unordered(run_chunk, chunks):
            yield from results
