"""hpcflow: LLM reinforcement-learning post-training on Slurm, supervised and resumable.

Importing this package imports no engine: the login side works where torch is not installed.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
