"""`python -m outpace`: the same as the `outpace` command."""

import sys

from outpace.cli import main

if __name__ == "__main__":
    sys.exit(main())
