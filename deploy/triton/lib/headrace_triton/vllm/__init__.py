"""The contract of Triton's vLLM backend: text and JSON in, the new text out."""
