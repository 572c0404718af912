"""A broker under overload, and tools to observe it as an operator would."""
