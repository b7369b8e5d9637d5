"""For all tests: property tests have no deadline per example, since a loaded machine is not a wrong answer.

Linear algebra keeps to one thread: the matrices are small, and threads that wait for each other on a loaded machine cost
five times the seconds.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
