"""Independent float64 NumPy oracles, written from the papers and the specification alone."""
