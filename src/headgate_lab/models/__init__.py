"""Plain modules. They know neither gates nor methods; a gate comes in as an ordinary module argument."""
