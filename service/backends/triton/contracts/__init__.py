"""The tensor contracts, one module each; all that differs between models stands here.

contract        what a contract gives the backend                 the seam
fields          a sampling field and its tensor
demands         what a request asks for, refused by name          pure
inflight        what the three models of inflight_batcher_llm share
ensemble, bls   text in, text out, over the token-level model
raw             token ids in, token ids out
llmapi          TensorRT-LLM's LLM API
vllm            Triton's vLLM backend
response        reads responses: what all contracts share
text_reader     responses with text
ebnf            a list of texts as a grammar                      pure
finish          the engine's own reason, where a contract has it
cumulative      text that grows -> deltas                         pure
"""
