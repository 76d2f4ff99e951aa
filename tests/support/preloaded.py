"""What the processes of `run_distributed` find imported, so that each need not: the train engine's libraries.

Imported in the process from which they are forked. vLLM is none of it: it reads the environment when it is
imported, and its test processes set that first.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import hpcflow.roles.train_engine  # noqa: F401
