"""Running recipes: what a run is, how it goes on after an interruption, what it leaves on disk."""
