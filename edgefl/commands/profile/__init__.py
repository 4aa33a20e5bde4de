"""``edgefl profile``, ``--measure``, ``--compare`` and ``edgefl cost-diff``: costs of clients, stage by stage."""
