"""`python -m hpcflow.roles ROLE`: one rank of a role; everything else comes from the environment."""

import logging
import os
import sys

from hpcflow.roles.worker import CONTRACTS, main
from hpcflow.spec.roles import ROLE_NAMES

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    wanted = [name for name in ROLE_NAMES if name == sys.argv[1]]
    assert wanted, f"unknown role {sys.argv[1]!r}; known are {', '.join(CONTRACTS)}"
    code = main(wanted[0])
    logging.shutdown()
    # The engines' own teardown takes ten seconds and has nothing left to do: the role has closed what
    # outlives it, and the nodes are to be free at once.
    os._exit(code)
