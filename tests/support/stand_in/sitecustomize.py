"""With this folder on PYTHONPATH roles and the driver of a real job only wait, for at most two minutes.

Launcher, controller, supervisor and command line are the real ones; no engine is loaded.
"""

import os
import sys
import time

if sys.orig_argv[1:2] == ["-m"] and sys.orig_argv[2] in ("hpcflow.roles", "hpcflow.driver"):
    from hpcflow.signals import die_with_parent

    # As the real ones do.
    die_with_parent(int(os.environ["HPCFLOW_PARENT"]) if os.environ["HPCFLOW_PARENT"] else None)
    print(f"stand-in for {sys.orig_argv[2:]}", flush=True)
    time.sleep(120)
    sys.exit(3)
