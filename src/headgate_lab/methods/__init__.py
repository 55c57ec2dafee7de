"""Ways to make a network small while it trains, all through one contract."""
