"""An accelerator beside the CPU, for whoever has one: is the same learned, and how fast.

    python -m rlscale.benchmarks.measurements.accelerator [--device cuda] [--rounds N] [--batch N] [--runs N] [--out FILE]

Nobody of this project has had one. `checks` learns from the same fragments on both and holds the differences against what
rounding allows, `figures` measures what docs/massive.md says of the CPU, and `__main__` prints a block to paste into an issue.

Start with `__main__`.
"""
