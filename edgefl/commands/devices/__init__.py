"""Predictions held against published measurements of training: ``edgefl devices validate``."""
