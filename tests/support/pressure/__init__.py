"""A broker under overload, and the observations that an operator can make meanwhile."""
