"""Slurm's commands, job states and variables: the only package that knows them."""
