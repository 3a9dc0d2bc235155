"""Use of processors and memory: CPU sharding, mixed precision, resource usage."""
