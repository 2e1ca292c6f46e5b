"""Who runs now and who waits. Knows asyncio and `service.core`, nothing else."""
