"""The process that trains: CPU shards, mixed precision, memory, resource usage."""
