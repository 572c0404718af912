"""Run all tests of a module marked ``xdist_group`` in one process when pytest runs with ``--dist loadgroup``.

pytest-xdist 3.8 appends the group to `Item._nodeid`, which pytest 9 ignores. Without this module, every worker would
create each group's fixtures again, and all wheels would be built three times.
"""

import re
from functools import cache
from pathlib import Path
from typing import Any

from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

ROOT = Path(__file__).parents[2]
_MARK = re.compile(r'^pytestmark = [^\]]*?\bxdist_group\("(\w+)"\)', re.MULTILINE)


@cache
def group_of(path: Path) -> str:
    """Return the group that the module at `path` names in ``pytestmark``, or '' if it names none."""
    found = _MARK.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else ""


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives all tests of a group to the same worker, and any other test to the next idle worker."""

    def _split_scope(self, nodeid: str) -> Any:
        return group_of(ROOT / nodeid.partition("::")[0]) or nodeid
