"""How a graph description becomes nodes of one engine library."""
