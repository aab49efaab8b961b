"""The science of rlscale: noise scales, run records, reports. Imports neither `envs`, `agents` nor `benchmarks`."""

__version__ = "0.1.0"
