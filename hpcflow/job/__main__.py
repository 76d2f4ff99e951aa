"""`python -m hpcflow.job RUN_DIR [slurm]`: supervise one attempt of a run; see `supervisor` for exit codes.

With `slurm` it is what a batch script has become, and starts the roles as steps of its job.
"""

import sys
from pathlib import Path

from hpcflow.job.launchers import LocalLauncher, SlurmLauncher
from hpcflow.job.supervisor import supervise
from hpcflow.rundir import RunDir

if __name__ == "__main__":
    launcher = SlurmLauncher.of_this_job if sys.argv[2:] == ["slurm"] else LocalLauncher
    sys.exit(supervise(RunDir(Path(sys.argv[1]).absolute()), launcher))
