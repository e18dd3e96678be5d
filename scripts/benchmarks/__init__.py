"""Benchmarks of the gradient engines and other libraries: one run, all variants in turns."""
