"""The commands of the command line and of ``import edgefl``: a module for each, with a function of its name.

Nothing is exported here: a function ``run`` would hide the module ``run``.
"""
