"""Test that every value of the public enumerations is used somewhere."""

import re
from pathlib import Path

import hookmq
import pytest
from hookmq.model.events import DropReason

ROOT = Path(hookmq.__file__).parent
SOURCES = "\n".join(
    path.read_text()
    for path in ROOT.rglob("*.py")
    if "testing" not in path.parts and path.name != "types.py"
)


@pytest.mark.parametrize("reason", DropReason)
def test_every_reason_to_drop_a_message_is_given_somewhere(reason: DropReason) -> None:
    assert re.search(rf"\bDropReason\.{reason.name}\b", SOURCES)
