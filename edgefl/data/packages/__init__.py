"""Data sets that are made from installed packages."""
