"""A plug-in whose every part is broken in a way of its own, but for one method.

Tests install a copy of it, to which they add the module ``mistyped`` with a SyntaxError.
"""
