"""Login side: a plan becomes a job through submitit. The only package that imports it."""
