"""Groups of a plan as one operator of the bridge, where kernels can compute them."""
