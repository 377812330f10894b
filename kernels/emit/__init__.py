"""From a KernelSpec to the source of a kernel."""
