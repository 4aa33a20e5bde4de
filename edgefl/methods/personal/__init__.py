"""Personal parts of models, and the methods that have them: ditto, fedper, fedbabu."""
