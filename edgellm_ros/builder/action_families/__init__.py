"""Action policies: which tensors each family has, which graphs they make, and what its manifest says."""
