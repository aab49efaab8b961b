"""Where the `rlscale` command starts. This module alone looks upwards: it hands over to `rlscale.benchmarks.cli`."""

import sys

from rlscale.benchmarks.cli import main

if __name__ == "__main__":
    sys.exit(main())
