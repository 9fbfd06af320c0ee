"""Tests of the simulator, the benchmarks built on it, and the capacity model."""
