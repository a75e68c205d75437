"""The tabletop policy: data, model, objective, training, export."""
