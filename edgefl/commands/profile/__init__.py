"""``edgefl profile``, ``--measure``, ``--compare`` and ``edgefl cost-diff``: what clients pay, stage by stage."""
