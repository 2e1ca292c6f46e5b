"""The contract of TensorRT-LLM's LLM API model: text in, the whole text so far out."""
