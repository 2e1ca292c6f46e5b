"""The business logic script of TensorRT-LLM's `tensorrt_llm_bls`: tokenizer, engine and decoder called one by one."""
