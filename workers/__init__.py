"""The worker process, its engines, prompt assembly and answer decoding."""
