"""The command line: one thin file per command. Here, and nowhere else: argv, the environment and exit codes."""
