"""The token-level contract of TensorRT-LLM's `tensorrt_llm`: ids in, ids out, one response per step."""
