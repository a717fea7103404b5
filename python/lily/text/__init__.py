"""Everything between text and token ids: tokenizer, chat template, detokenizer, stop ids, defaults."""

from lily.text.chat_template import ChatTemplate, checked_variables
from lily.text.detokenizer import StreamingDetokenizer
from lily.text.generation_config import GenerationDefaults, read_generation_defaults
from lily.text.messages import answerable, prepare_messages
from lily.text.stop_tokens import read_stop_tokens
from lily.text.text_guard import TextGuard
from lily.text.tokenizer import Tokenizer
from lily.text.tokenizer_config import TokenizerConfig, read_tokenizer_config

__all__ = [
    "ChatTemplate",
    "GenerationDefaults",
    "StreamingDetokenizer",
    "TextGuard",
    "Tokenizer",
    "TokenizerConfig",
    "answerable",
    "checked_variables",
    "prepare_messages",
    "read_generation_defaults",
    "read_stop_tokens",
    "read_tokenizer_config",
]
