"""The names of sinks and sources."""

import re
from typing import Final

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
"""Pattern for the names of sinks and sources. Each has a folder with its name."""
