"""Tables, figures and pages, made from records on disk only."""
