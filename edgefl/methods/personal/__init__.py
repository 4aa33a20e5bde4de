"""Methods with personal parts of models: ditto, fedper, fedbabu."""
