"""The pytest plugin of the testing kit."""
