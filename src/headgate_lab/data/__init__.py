"""Plain datasets. They know neither gates nor methods."""
