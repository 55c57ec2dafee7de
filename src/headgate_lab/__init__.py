"""The paper and the benchmarks on top of Headgate. Uses nothing of `headgate` but its public names."""
