"""Property tests run without a deadline: the machines that run them are shared."""

from hypothesis import settings

settings.register_profile("handoff", deadline=None)
settings.load_profile("handoff")
