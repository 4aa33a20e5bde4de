"""What runs have brought: facts of one, spreads over seeds, paired tests."""
