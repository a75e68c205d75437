"""Training of the models that ship with the package; needs torch, which the package itself does not."""
