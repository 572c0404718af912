"""Test that planted bugs name a function and a change to it. A bug that no longer fits the source is refused."""

import pathlib

import pytest
from planting import Bug, Change, load, problems

SOURCE = '''
LIMIT: Final = (
    1  # one
)

class Broker:
    def start(self, ready):
        """Start."""
        if (
            ready  # a comment
            and self.open
        ):
            begin(self, "ä", 1)
            return 1
        def loaded():
            return 1
        return loaded

def start():
    return 1
'''


def changed(function: str, old: str, new: str) -> str:
    return Change("p/x.py", function, old, new).apply(SOURCE)


@pytest.mark.parametrize(
    ("function", "old", "new", "text"),
    [
        ("start", "return 1", "return 2", "def start():\n    return 2\n"),
        ("LIMIT", "1", "2", "    2  # one\n"),
        ("Broker.start.loaded", "return 1", "x = 2\nreturn x", "            x = 2\n            return x"),
        ("Broker.start", "if ready and self.open:", "if ready:", "        if ready:\n            begin("),
        ("Broker.start", "ready and self.open", "ready", "        if (\n            ready\n        ):"),
        ("Broker.start", "begin(self, 'ä', 1)\nreturn 1", "return 1", "):\n            return 1\n        def"),
        ("Broker.start", "begin(self, 'ä', 1)", "", "            pass\n            return 1"),
        ("Broker.start", "'ä'", "'b'", 'begin(self, \'b\', 1)'),
    ],
)  # fmt: skip
def test_code_is_found_as_syntax_and_replaced(function: str, old: str, new: str, text: str) -> None:
    assert text in changed(function, old, new)


@pytest.mark.parametrize(
    ("function", "old", "words"),
    [
        ("stop", "return 1", "p/x.py has 0 functions stop"),
        ("loaded", "return 1", "p/x.py has 0 functions loaded"),
        ("start", "return 2", "p/x.py: its code stands 0 times in start"),
        ("Broker.start", "return 1", "p/x.py: its code stands 2 times in Broker.start"),
        ("Broker.start", "if ready:", "p/x.py: its code stands 0 times in Broker.start"),
    ],
)
def test_a_planted_bug_whose_line_is_missing_or_repeated_is_refused(
    function: str, old: str, words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        changed(function, old, "pass")


@pytest.mark.parametrize(
    "text",
    [
        "No function.\nwithin 5 seeds\n=== hookmq/model/message.py\n--- old\n1\n--- new\n2\n",
        "No bound.\n=== hookmq/model/message.py::Will\n--- old\n1\n--- new\n2\n",
        "Nothing new.\nwithin 5 seeds\n=== hookmq/model/message.py::Will\n--- old\n1\n",
    ],
)
def test_a_file_that_is_incomplete_is_refused(text: str, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "bug.edit"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"^bug\.edit: "):
        load(path)


def test_a_bug_that_is_no_longer_valid_python_is_reported() -> None:
    """A bug that is no longer valid Python is reported. Importing the changed module would fail
    with every seed, and the bug itself would not be tested.
    """
    path, function = "hookmq/hooks/recursion.py", "at_depth"
    wrong = Change(path, function, "token = DEPTH.set(depth)", "else:")
    gone = Change(path, "no_such", "1", "2")
    unread = Change("hookmq/no_such.py", "f", "1", "2")
    for change, words in ((wrong, "invalid syntax"), (gone, "no_such"), (unread, "No such file")):
        [problem] = problems(Bug("bug", 1, None, (change,)))
        assert words in problem
