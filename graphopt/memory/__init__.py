"""What a graph's tensors occupy, when, and where they can lie."""
