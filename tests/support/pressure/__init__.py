"""A broker under overload, and what an operator can observe at the time."""
