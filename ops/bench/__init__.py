"""The benchmarks behind every figure in the documentation; each prints ratios and figures of one run."""
