"""What runs for long: loops, retries and waits around the engines and the stores."""
