"""The numbers behind the papers' figures, one file for each."""
