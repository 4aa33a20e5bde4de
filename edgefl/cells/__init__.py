"""The cells of a grid, run one after the other or side by side."""
