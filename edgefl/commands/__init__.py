"""What the command line and ``import edgefl`` offer: a module for each command, with a function of its name.

Nothing is exported here: a function ``run`` would hide the module ``run``.
"""
