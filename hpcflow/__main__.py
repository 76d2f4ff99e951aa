"""`python -m hpcflow`: the same as the `hpcflow` command."""

from hpcflow.cli.app import main

if __name__ == "__main__":
    main()
