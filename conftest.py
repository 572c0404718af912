"""How the property tests draw their inputs: a profile of Hypothesis, chosen by HYPOTHESIS_PROFILE.

dev (the default) draws new inputs every time; ci draws the same ones every time, so that a failure comes from the change
that is tested. `make fuzz` is dev again and again.
"""

import os

from hypothesis import settings

settings.register_profile("dev", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("dev"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))
