"""What passes that fold into weights share: affine nodes, anchors, sub-graphs on parameters."""
