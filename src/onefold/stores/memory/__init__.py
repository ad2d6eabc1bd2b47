"""What a port asks for, in memory: for tests, for simulations, and for what need not outlive its process."""
