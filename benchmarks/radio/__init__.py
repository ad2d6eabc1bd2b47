"""The parts of ./run bench lorawan, one file each."""
