"""Where the `rlscale` command starts. This module alone looks upwards: it hands over to `rlscale.benchmarks.cli`."""

import os
import sys

# The matrices of a fit are tiny, and threads of NumPy's BLAS only spin while they wait for each other: beside two busy
# processes on two cores, reading the ladder took 20 s with two threads and 9 s with one. PyTorch has its own (`--threads`).
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rlscale.benchmarks.cli import main

if __name__ == "__main__":
    sys.exit(main())
