"""For all tests: signals as in a terminal."""

import signal

# A shell starts background jobs with SIGINT ignored, which their children inherit: Ctrl-C could not be tested.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
