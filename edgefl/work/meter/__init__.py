"""What a work costs while it runs: live tensors, FLOPs, calls of operators, and the allocator's peak."""
