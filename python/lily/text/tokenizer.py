"""Turns text into token ids and back, from a checkpoint's tokenizer.json."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from lily.checkpoint.json_file import checked_json_text
from lily.checkpoint.read_file import TOKENIZER_LIMIT, exists, read_file
from lily.checks.arguments import as_flag, as_path, as_stream, check_callable
from lily.checks.quoting import quoted, quoted_path, quoted_text
from lily.checks.whole_numbers import whole_number
from lily.errors import InvalidArgumentError, TokenizerError
from lily.text.detokenizer import StreamingDetokenizer
from lily.text.safe_borders import SafeBorders
from lily.text.text_marks import pattern_of

__all__ = ["Tokenizer"]


_LONG_TEXT = 1 << 14  # characters: some ten milliseconds


class Tokenizer:
    """A byte-level BPE tokenizer; immutable after construction and safe to use from any thread.

    Make one with `from_directory` or `from_file`.
    """

    def __init__(self, source: str, *, origin: str = "tokenizer.json") -> None:
        """Build the tokenizer from the text of a tokenizer.json; `origin` names it in errors.

        Raises
        ------
        TokenizerError
            The text is not a usable byte-level tokenizer.
        """
        self._origin = origin
        self._tokenizer = _build(source, origin)
        added = self._tokenizer.get_added_tokens_decoder()
        self._added = {token_id: (token.content, bool(token.special)) for token_id, token in added.items()}
        self.matches_added_tokens_exactly = not any(
            token.lstrip or token.rstrip or token.single_word for token in added.values()
        )  #: whether added tokens match regardless of white space or letters beside them
        self.normalizes_added_tokens = any(token.normalized for token in added.values())
        self._added_texts = pattern_of([content for content, _ in self._added.values()])
        self._borders = SafeBorders(
            self._tokenizer,
            self.added_tokens,
            exact=self.matches_added_tokens_exactly and not self.normalizes_added_tokens,
        )
        self._bytes: dict[int, bytes] = {}
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        if not vocabulary:
            raise TokenizerError(f"{origin}: the vocabulary is empty")
        self._vocab_size = max(vocabulary.values()) + 1

    @classmethod
    def from_directory(cls, directory: Path | str) -> Tokenizer:
        """Read ``tokenizer.json`` of a checkpoint directory.

        Raises
        ------
        TokenizerError
            The file is missing, damaged or not a byte-level tokenizer.
        """
        return cls.from_file(as_path("directory", directory, TokenizerError) / "tokenizer.json")

    @classmethod
    def from_file(cls, path: Path | str) -> Tokenizer:
        """Read a tokenizer.json file; errors as for `from_directory`."""
        path = as_path("path", path, TokenizerError)
        if not exists(path):
            raise TokenizerError(
                f"{quoted_path(path.parent)}: {path.name} is missing; put the checkpoint's {path.name} there, "
                "or use token ids instead of text"
            )
        data = read_file(path, TokenizerError, limit=TOKENIZER_LIMIT)
        return cls(checked_json_text(data, str(path), TokenizerError), origin=str(path))

    @property
    def vocab_size(self) -> int:
        """One more than the highest real id, added tokens included.

        Models pad their vocabulary; rows from this id on mean nothing and must not be sampled.
        """
        return self._vocab_size

    @property
    def added_tokens(self) -> Mapping[str, int]:
        """Ids of the tokens that are matched as a whole (``<|im_end|>``, ``<think>``, ...), by text."""
        return {content: token_id for token_id, (content, _) in self._added.items()}

    def token_id(self, token: str) -> int | None:
        """Return the id of a token's exact text (as in the vocabulary), or None if there is none."""
        if not isinstance(token, str):
            raise InvalidArgumentError(f"token must be a str, not {type(token).__name__}")
        try:
            token_id: int | None = self._tokenizer.token_to_id(token)
        except UnicodeEncodeError:  # a lone surrogate is in no vocabulary
            return None
        return token_id

    def encode(self, text: str, *, parse_special: bool = True, check: Callable[[], None] | None = None) -> list[int]:
        """Return the token ids of `text`; no begin or end token is added.

        Parameters
        ----------
        text
            Any text.
        parse_special
            True: the text of an added token, such as ``<|im_end|>`` or ``<think>``, becomes its one id. That
            is right for rendered chat templates and for trusted prompts. False: such text is encoded as
            ordinary characters, so that text from outside cannot end a turn or open a new one.
        check
            Called between parts of a long text; an exception ends the work.

        Raises
        ------
        InvalidArgumentError
            `text` is not a string or contains lone surrogates.
        """
        check_callable("check", check)
        ids: list[int] = []
        for part in self._encoded_parts(text, parse_special):
            if check is not None:
                check()
            ids += part
        return ids

    def count(self, text: str, most: int, *, parse_special: bool = True) -> int:
        """How many ids `encode` gives, or some number above `most` if there are more; errors as there."""
        count, most = 0, whole_number("most", most, 0, error_type=InvalidArgumentError)
        for part in self._encoded_parts(text, parse_special):
            count += len(part)
            if count > most:
                break
        return count

    def longest_part(self, text: str) -> int:
        """UTF-8 bytes of the longest part of `text` that must be encoded at once; memory is proportional to it."""
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text must be a str, not {type(text).__name__}")
        if len(text) < _LONG_TEXT:
            return len(text.encode("utf-8", "replace"))
        return max(len(part.encode("utf-8", "replace")) for part in self._borders.parts(text, _LONG_TEXT))

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD.

        Parameters
        ----------
        ids
            Token ids below `vocab_size`.
        skip_special
            Leave out the tokens that tokenizer.json marks as special. ``<think>`` and the tool tags are not
            so marked and stay.

        Raises
        ------
        InvalidArgumentError
            An id is not a token.
        """
        skip = as_flag("skip_special", skip_special)
        given = as_stream("ids", ids, "a list of token ids")
        return b"".join(self.token_bytes(token, skip_special=skip) for token in given).decode("utf-8", "replace")

    def token_bytes(self, token: int, *, skip_special: bool = False) -> bytes:
        """Return the bytes of `token`, which may be part of a UTF-8 character; errors as for `decode`."""
        if type(token) is not int:
            token = _as_id(token)
        if as_flag("skip_special", skip_special) and self.is_special(token):
            return b""
        known = self._bytes.get(token)
        if known is None:
            known = self._bytes[token] = self._look_up_bytes(token)
        return known

    def is_special(self, token: int) -> bool:
        """Tell whether tokenizer.json marks the id as special (control tokens that are not text)."""
        return self._added.get(token if type(token) is int else _as_id(token), ("", False))[1]

    def detokenizer(self, *, skip_special: bool = False) -> StreamingDetokenizer:
        """Return a new streaming detokenizer, for one stream of ids."""
        return StreamingDetokenizer(self, skip_special=as_flag("skip_special", skip_special))

    def __repr__(self) -> str:
        return f"Tokenizer({self._origin!r}, vocab_size={self._vocab_size})"

    def _encoded_parts(self, text: str, parse_special: bool) -> Iterator[list[int]]:
        if not isinstance(text, str):
            raise InvalidArgumentError(f"text must be a str, not {type(text).__name__}")
        plain = not as_flag("parse_special", parse_special) and self._may_match_added_tokens(text)
        encoder = self._plain_tokenizer if plain else self._tokenizer
        try:
            if len(text) < _LONG_TEXT:
                yield encoder.encode(text, add_special_tokens=False).ids
                return
            for part in self._borders.parts(text, _LONG_TEXT):  # only the batch encoder releases the GIL
                yield encoder.encode_batch_fast([part], add_special_tokens=False)[0].ids
        except (TypeError, UnicodeEncodeError) as error:
            raise InvalidArgumentError(f"text at character {_first_surrogate(text)}: a lone surrogate") from error

    def _may_match_added_tokens(self, text: str) -> bool:
        return self.normalizes_added_tokens or self._added_texts.search(text) is not None

    def _look_up_bytes(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token][0].encode("utf-8")
        text = None
        if 0 <= token < self._vocab_size:
            text = self._tokenizer.id_to_token(int(token))
        if text is None:
            raise InvalidArgumentError(
                f"token id {quoted(token)} is not a token of {self._origin} (ids 0 to {self._vocab_size - 1})"
            )
        byte_of = _byte_of_character()
        try:
            return bytes(byte_of[character] for character in text)
        except KeyError as error:
            raise TokenizerError(
                f"{self._origin}: token {token} ({text!r}) is not written in the byte-level alphabet"
            ) from error

    @functools.cached_property
    def _plain_tokenizer(self) -> tokenizers.Tokenizer:
        """The same vocabulary without added tokens: `encode_special_tokens` would still match <think>."""
        plain = tokenizers.Tokenizer(self._tokenizer.model)  # which the two share
        for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
            setattr(plain, part, getattr(self._tokenizer, part))
        return plain


def _as_id(token: Any) -> int:
    return whole_number("a token id", token, 0, error_type=InvalidArgumentError)


def _build(source: str, origin: str) -> tokenizers.Tokenizer:
    try:
        tokenizer = tokenizers.Tokenizer.from_str(source)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the Rust library is not an Exception
        raise TokenizerError(
            f"{quoted_path(origin)}: not a usable tokenizer ({quoted_text(error)}); download the file again"
        ) from error
    if not isinstance(tokenizer.decoder, tokenizers.decoders.ByteLevel):
        kind = type(tokenizer.decoder).__name__
        raise TokenizerError(f"{origin}: only byte-level tokenizers are supported; this file's decoder is {kind}")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _first_surrogate(text: str) -> int:
    return next((index for index, character in enumerate(text) if "\ud800" <= character <= "\udfff"), len(text))


@functools.lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """The byte-level alphabet: printable Latin-1 stands for itself, the other bytes for U+0100 on."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + index): byte for index, byte in enumerate(others)})
    return alphabet
