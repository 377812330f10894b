"""From MXNet's models to graphs."""
