"""What goes over a wire: bytes to messages and back, and the sockets that carry them."""
