"""The paper's experiments: which recipes each consists of.

An experiment is a module here with `EXPERIMENT`: its id, its title, where it stands in the paper, and the recipes.
"""
