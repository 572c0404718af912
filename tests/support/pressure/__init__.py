"""A broker under more than it can take, and what an operator sees of it meanwhile."""
