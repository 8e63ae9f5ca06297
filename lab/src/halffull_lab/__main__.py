"""`python -m halffull_lab` is the `halffull` command."""

import sys

from halffull_lab.cli import main

sys.exit(main())
