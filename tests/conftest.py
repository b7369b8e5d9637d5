"""For all tests: property tests have no deadline per example, since a loaded machine is not a wrong answer."""

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")
