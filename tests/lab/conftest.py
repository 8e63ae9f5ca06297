"""Nothing here depends on who started the tests."""

import signal

# In the background of a script Ctrl-C is ignored, and every child would inherit that: some are to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
