"""What the models of this repository share: the vocabulary, the engines, the settings.

Runs inside Triton's Python backend, on numpy 1 and Python 3.8 or later; it
must not know the service.
"""
