"""Calls from the driver to role ranks: typed frames, time-outs, a per-run token."""
