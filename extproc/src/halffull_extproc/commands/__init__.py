"""The commands of `halffull-extproc`, a module each: `add_arguments` and `main`, which returns the exit code.

A module is imported when its command is called, because that is most of what a short command costs.
"""
