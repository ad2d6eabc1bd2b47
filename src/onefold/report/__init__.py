"""What a run looks like: its figures in, text out. Made from the tally and samples, never from the whole data."""
