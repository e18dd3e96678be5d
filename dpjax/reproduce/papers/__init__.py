"""The papers' tables as experiments, one file for each paper."""
