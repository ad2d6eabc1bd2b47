"""Simulation: traffic with known truth, and faults from one seed."""
