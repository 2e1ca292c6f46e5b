"""Text to token ids and back to exact bytes, by a Hugging Face tokenizer.json.

Needs the extra `tokenizer`. It must not know engines, requests and templates.
"""

from service.tokens.long_texts import read_ids, read_text
from service.tokens.tokenizer import DecoderError, JsonTokenizer, TokenCodec, TokenizerError

__all__ = ["DecoderError", "JsonTokenizer", "TokenCodec", "TokenizerError", "read_ids", "read_text"]
