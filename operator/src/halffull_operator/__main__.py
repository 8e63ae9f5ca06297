"""`python -m halffull_operator`."""

import sys

from halffull_operator.cli import main

if __name__ == "__main__":
    sys.exit(main())
