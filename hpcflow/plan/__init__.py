"""What will run: pure functions from a spec to placed processes and batch sizes."""
