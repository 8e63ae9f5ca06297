"""What a person can put right."""


class InputError(Exception):
    """Something given to the picker cannot be used: the configuration, a file, an address, a certificate.

    The message is one line that says what, where and why; the command prints it and ends with exit code 2.
    """
