"""The command line: the application, commands that follow from functions, signals, and the display of progress."""
