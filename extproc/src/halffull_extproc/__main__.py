"""`python -m halffull_extproc`."""

import sys

from halffull_extproc.cli import main

if __name__ == "__main__":
    sys.exit(main())
