"""From graphs to what runs: MXNet's executors, and the numpy reference."""
