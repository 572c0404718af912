"""The modules, tests and functions that mutation testing refers to exist."""

import ast

import pytest
from mutate import ROOT, SUITES, equivalent, path_of
from operators import mutants
from planting import functions


@pytest.mark.parametrize("module", [name for names in SUITES.values() for name in names])
def test_a_module_to_mutate_exists(module: str) -> None:
    assert path_of(module).is_file()


@pytest.mark.parametrize("path", sorted({path for paths in SUITES for path in paths}))
def test_the_tests_of_a_suite_exist(path: str) -> None:
    assert (ROOT / path).exists()


@pytest.mark.parametrize("module", sorted({key[0] for key in equivalent()}))
def test_an_equivalent_mutant_names_a_function_that_exists(module: str) -> None:
    assert module in {name for names in SUITES.values() for name in names}
    tree = ast.parse(path_of(module).read_text())
    named = {key[1] for key in equivalent() if key[0] == module and key[1]}
    assert named <= {name for name, _ in functions(tree)}


def test_a_mutant_is_named_by_its_function_and_code() -> None:
    first = {one.key() for one in mutants("m", "def f(a):\n    if a > 1:  # why\n        g()\n")}
    later = {
        one.key() for one in mutants("m", "X = None\n\n\ndef f(a):\n    if a > 1:\n        g()\n")
    }
    other = {one.key() for one in mutants("m", "def h(a):\n    if a > 1:\n        g()\n")}
    assert first
    assert first <= later
    assert not first & other
