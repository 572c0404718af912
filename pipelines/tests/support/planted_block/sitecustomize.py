"""Make this process drop every 40th block that it reads, for `planted.py`. The bug takes effect after the reader has
checked that there are no gaps between blocks.
"""

from itertools import count
from typing import Any

from pyspark_mqtt import arrow

EACH = 40
numbers = count(1)
whole = arrow._batch


def some(*arguments: Any) -> Any:
    """Return a block's rows, or no rows if the block is to be dropped."""
    batch = whole(*arguments)
    return batch if next(numbers) % EACH else batch.slice(0, 0)


setattr(arrow, "_batch", some)  # noqa: B010
