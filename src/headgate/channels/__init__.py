"""Which channels of a model live and die together. Knows nothing of gates."""
