"""Which tensors the script passes on, and under which names. Pure."""

from __future__ import annotations

__all__ = ["ENGINE_INPUTS", "ENGINE_OUTPUTS", "PASSED_ON", "PREPARED", "PREPROCESSING_INPUTS", "REFUSED"]

# The caller's tensor -> that of preprocessing.
PREPROCESSING_INPUTS = {
    "text_input": "QUERY",
    "decoder_text_input": "DECODER_QUERY",
    "image_bytes_input": "IMAGE_BYTES",
    "image_url_input": "IMAGE_URL",
    "video_bytes_input": "VIDEO_BYTES",
    "max_tokens": "REQUEST_OUTPUT_LEN",
    "bad_words": "BAD_WORDS_DICT",
    "stop_words": "STOP_WORDS_DICT",
    "embedding_bias_words": "EMBEDDING_BIAS_WORDS",
    "embedding_bias_weights": "EMBEDDING_BIAS_WEIGHTS",
    "end_id": "END_ID",
    "pad_id": "PAD_ID",
    "prompt_table_extra_id": "PROMPT_TABLE_EXTRA_ID",
}

# What preprocessing puts out -> the tensor of the engine.
PREPARED = {
    "INPUT_ID": "input_ids",
    "REQUEST_INPUT_LEN": "input_lengths",
    "REQUEST_OUTPUT_LEN": "request_output_len",
    "BAD_WORDS_IDS": "bad_words_list",
    "STOP_WORDS_IDS": "stop_words_list",
    "EMBEDDING_BIAS": "embedding_bias",
    "OUT_END_ID": "end_id",
    "OUT_PAD_ID": "pad_id",
}

# The caller's tensor -> that of the engine. num_return_sequences is missing, as in the original.
ENGINE_INPUTS = {
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    **{
        name: name
        for name in (
            "beam_width",
            "temperature",
            "repetition_penalty",
            "min_tokens",
            "presence_penalty",
            "frequency_penalty",
            "seed",
            "return_log_probs",
            "return_context_logits",
            "return_generation_logits",
            "return_perf_metrics",
            "return_num_input_tokens",
            "return_num_output_tokens",
            "prompt_embedding_table",
            "prompt_vocab_size",
            "lora_task_id",
            "lora_weights",
            "lora_config",
            "exclude_input_in_output",
            "guided_decoding_guide_type",
            "guided_decoding_guide",
        )
    },
}

# Draft models and image encoders are not deployed here.
REFUSED = ("image_input", "num_draft_tokens", "use_draft_logits")

# What the engine answers besides its tokens goes to the caller as it is.
PASSED_ON = (
    "cum_log_probs",
    "output_log_probs",
    "context_logits",
    "generation_logits",
    "batch_index",
    "sequence_index",
    "kv_cache_alloc_new_blocks",
    "kv_cache_reused_blocks",
    "kv_cache_alloc_total_blocks",
    "arrival_time_ns",
    "first_scheduled_time_ns",
    "first_token_time_ns",
    "last_token_time_ns",
    "acceptance_rate",
    "total_accepted_draft_tokens",
    "total_draft_tokens",
    "num_input_tokens",
    "num_output_tokens",
)
ENGINE_OUTPUTS = ("output_ids", "sequence_length", *PASSED_ON)
