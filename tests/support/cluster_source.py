"""Marks tests of the cluster that patch constants. mypyc compiles constants into the code."""

import hookmq_cluster
import pytest

needs_the_source = pytest.mark.skipif(
    hookmq_cluster.BUILD.kind != "pure", reason="constants are compiled in"
)
