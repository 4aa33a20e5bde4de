"""Measurements of the computer at hand: its rates, its memory, its link to another, and works run under observation."""
