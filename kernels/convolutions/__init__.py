"""Regions of convolutions in blocked layout: what the bridge computes of a network of images."""
