"""Property tests draw the same examples in every run, and a busy machine does not fail them."""

from hypothesis import settings

settings.register_profile("algorithms", derandomize=True, deadline=None, max_examples=50, database=None)
settings.load_profile("algorithms")
