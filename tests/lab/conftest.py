"""Nothing here depends on how busy the machine is, or on who started the tests."""

import signal

from hypothesis import HealthCheck, settings

# Properties are judged by what they find, not by how long a busy machine takes over an example.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# In the background of a script Ctrl-C is ignored, and every child would inherit that: some are to be interrupted.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
