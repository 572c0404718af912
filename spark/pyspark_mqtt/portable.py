"""Objects that the driver sends to executors. If an executor cannot unpickle them, it reports what is not installed."""

import pickle
from typing import Any, TypeVar

Function = TypeVar("Function")


def _by_value(function: Function) -> Function:
    """Make Spark pickle the function itself instead of its name, because the function runs without this package."""
    function.__module__ = "__main__"
    return function


@_by_value
def _arrive(state: bytes) -> Any:
    try:
        import pyspark_mqtt  # noqa: F401
    except ImportError as error:
        import platform
        import sys

        raise ModuleNotFoundError(
            f"pyspark_mqtt cannot be imported on {platform.node()} by {sys.executable} ({error}): install "
            "pyspark-mqtt on every node; or send it with spark.sparkContext.addPyFile and then call "
            "spark.dataSource.register(pyspark_mqtt.DefaultSource): what Spark finds by itself goes without."
        ) from None
    import pickle

    kind, attributes = pickle.loads(state)
    made = kind.__new__(kind)
    made.__dict__.update(attributes)
    return made


class Portable:
    """A base class whose unpickling fails with a one-line message if the package is not installed."""

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = getattr(self, "__getstate__", lambda: self.__dict__)()
        return _arrive, (pickle.dumps((type(self), attributes)),)
