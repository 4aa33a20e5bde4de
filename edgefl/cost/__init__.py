"""The cost of a work: predicted on fake tensors, then priced in seconds and joules on a device and a link."""
