"""An hour of mixed load: does anything grow?

mix      what callers do                                   pure
run      the processes, the callers and the memory
section  the figures, and which of them are as promised
plot     docs/soak.png
"""
