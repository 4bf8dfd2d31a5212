"""The command line: ``table`` lists the commands, one module per command implements them."""
