"""Action-diffusion policies: what they need, how they are run, and how their chunks become motion."""
