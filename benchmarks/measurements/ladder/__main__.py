"""`python -m rlscale.benchmarks.measurements.ladder`: see `climb`."""

import sys

from .climb import main

if __name__ == "__main__":
    sys.exit(main())
