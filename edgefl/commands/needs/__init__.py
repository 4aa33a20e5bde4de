"""What a run needs of this machine: memory, disk, GPUs and time, before it begins."""
