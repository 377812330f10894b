"""The command line: one verb a file, loaded when it is called; the rules are in docs/cli.md."""
