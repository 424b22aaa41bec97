"""Quality evaluation and benchmarks; uses only the public API."""
