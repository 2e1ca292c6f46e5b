"""The embedded engine: llama.cpp in this process, through `xllamacpp`.

`backend` is what the service uses; `parameters` and `chunks` translate to and
from llama.cpp's JSON and are pure; `engine` is the only importer of the library.
"""
