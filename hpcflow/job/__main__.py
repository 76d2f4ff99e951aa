"""`python -m hpcflow.job RUN_DIR`: supervise one attempt of a run; see `supervisor` for exit codes."""

import sys
from pathlib import Path

from hpcflow.job.supervisor import supervise
from hpcflow.rundir import RunDir

if __name__ == "__main__":
    sys.exit(supervise(RunDir(Path(sys.argv[1]).absolute())))
