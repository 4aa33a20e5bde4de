"""``edgefl profile``, ``--measure``, ``--clients``, ``--compare``, and ``edgefl devices check``: costs of clients."""
