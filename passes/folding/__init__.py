"""What folding passes share: affine nodes, anchors, sub-graphs on parameters, known values."""
