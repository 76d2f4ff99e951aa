"""On PYTHONPATH of a job: the supervisor does nothing but write what it was given, and ends.

`SEEN_BY_JOB` names a file for its arguments and environment, as JSON. Elsewhere this changes nothing.
"""

import json
import os
import sys
from pathlib import Path

if "SLURM_JOB_ID" in os.environ and "hpcflow.job" in sys.orig_argv and "SEEN_BY_JOB" in os.environ:
    seen = {"argv": sys.orig_argv, "environ": dict(os.environ), "folder": os.getcwd()}
    half = Path(os.environ["SEEN_BY_JOB"] + ".half")
    half.write_text(json.dumps(seen))
    half.rename(os.environ["SEEN_BY_JOB"])
    print("seen", flush=True)
    os._exit(0)
