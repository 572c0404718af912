"""Choose the Python interpreter for Spark's workers, and check it before Spark starts.

Without `PYSPARK_PYTHON`, Spark starts the first ``python3`` on `PATH`. Outside an activated virtual environment, that
interpreter lacks the packages, and Spark reports more than a hundred lines of Java instead of the cause.
"""

import os
import subprocess
import sys
from collections.abc import MutableMapping
from typing import Final

from mqtt_pipelines.settings import PipelineError

VARIABLE: Final = "PYSPARK_PYTHON"
NEEDED: Final = ("pyspark", "pyarrow", "pyspark_mqtt", "mqtt_pipelines")
"""The modules that a worker imports."""
_PROBE: Final = (
    "import sys, importlib.util as u; "
    f"print('%d.%d' % sys.version_info[:2], *[n for n in {NEEDED!r} if u.find_spec(n) is None])"
)
_WAIT: Final = 60.0


def use_this_python(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set `PYSPARK_PYTHON` to the running interpreter, unless it is already set. If it is set, check the interpreter
    that it names.

    Raises PipelineError if that interpreter does not start, has another version, or lacks a module. This call blocks
    while the interpreter runs.
    """
    named = environ.get(VARIABLE, "")
    if not named:
        environ[VARIABLE] = sys.executable
        return
    if named == sys.executable:
        return
    remedy = f"unset {VARIABLE}, or set it to {sys.executable}"
    try:
        done = subprocess.run(
            [named, "-c", _PROBE],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WAIT,
            check=True,
        )
        version, *missing = done.stdout.split()
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or "it ends with an error"
        raise PipelineError(
            f"{VARIABLE} names {named}, which does not run ({reason}): {remedy}"
        ) from None
    ours = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if missing:
        raise PipelineError(
            f"{VARIABLE} names {named}, which has no {', '.join(missing)}: {remedy}"
        )
    if version != ours:
        raise PipelineError(
            f"{VARIABLE} names {named}, which is Python {version}, but this is {ours}: {remedy}"
        )
