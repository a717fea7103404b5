"""The side files of a checkpoint are read by one careful reader: nothing waits, fills memory or passes unnoticed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lily.checkpoint import json_file, read_checkpoint
from lily.errors import LilyError, TemplateError, TokenizerError
from lily.text import ChatTemplate, Tokenizer, read_generation_defaults, read_stop_tokens, read_tokenizer_config

READERS: dict[str, Callable[[Path], object]] = {
    "tokenizer.json": Tokenizer.from_directory,
    "tokenizer_config.json": read_tokenizer_config,
    "generation_config.json": read_generation_defaults,
    "chat_template.jinja": ChatTemplate.from_directory,
    "chat_template.json": ChatTemplate.from_directory,
    "config.json": lambda directory: read_stop_tokens(directory, vocab_size=10_000),
}
JSON = [name for name in READERS if name.endswith(".json")]


@pytest.fixture
def folder(tiny: Path, tmp_path: Path) -> Path:
    """The text files of the bundled model in a folder of their own, with the template in chat_template.json too."""
    for name in READERS:
        if (tiny / name).exists():
            shutil.copyfile(tiny / name, tmp_path / name)
    source = (tiny / "chat_template.jinja").read_text(encoding="utf-8")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": source}))
    return tmp_path


def place(folder: Path, name: str, content: bytes | None) -> Path:
    """Replace a file, and remove what would be read before it."""
    if name == "chat_template.json":
        (folder / "chat_template.jinja").unlink()
        (folder / "tokenizer_config.json").unlink()
    (folder / name).unlink(missing_ok=True)
    if content is not None:
        (folder / name).write_bytes(content)
    return folder / name


def refusal(folder: Path, name: str) -> str:
    with pytest.raises(LilyError) as caught:
        READERS[name](folder)
    text = str(caught.value)
    assert str(folder / name) in text
    assert len(text) < 800
    return text.removeprefix(str(folder / name))


@pytest.mark.parametrize("name", READERS)
def test_unchanged_files_are_read(folder: Path, name: str) -> None:
    READERS[name](folder)


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_not_waited_for(folder: Path, name: str) -> None:
    os.mkfifo(place(folder, name, None))
    assert "is not a regular file" in refusal(folder, name)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("target", ["/dev/zero", "/dev/tty", ".", "absent"])
def test_links_to_what_is_no_file(folder: Path, name: str, target: str) -> None:
    place(folder, name, None).symlink_to(target)
    assert refusal(folder, name)


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_gigabytes_is_refused_by_its_size(folder: Path, name: str) -> None:
    path = place(folder, name, b"{")
    os.truncate(path, 3 << 30)  # sparse
    assert "exceed the limit for such a file" in refusal(folder, name)


@pytest.mark.parametrize("name", READERS)
def test_a_link_to_a_good_file_is_followed(folder: Path, name: str) -> None:
    if name == "chat_template.json":
        place(folder, name, (folder / name).read_bytes())
    (folder / name).rename(folder / "blob")
    (folder / name).symlink_to("blob")
    READERS[name](folder)


OTHER_CONTENT = [
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 12\n", "git lfs pull"),
    (b"<!DOCTYPE html>\n<html><body>404</body></html>", "is a web page"),
    (b"\n <html lang=en>", "is a web page"),
    (b"\0" * 100, "only zero bytes"),
    (b"GGUF\x03\0\0\0", "is a GGUF file"),
    (b"PK\x03\x04abc", "is a zip archive"),
    (b"\x1f\x8b\x08", "compressed with gzip"),
    ("{}".encode("utf-16"), "UTF-16; save it as UTF-8"),
    ("{}".encode("utf-16-be"), "UTF-16; save it as UTF-8"),
    (b"{\xff}", "is not UTF-8"),
]


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(("content", "fragment"), OTHER_CONTENT, ids=[fragment for _, fragment in OTHER_CONTENT])
def test_other_content_is_named(folder: Path, name: str, content: bytes, fragment: str) -> None:
    place(folder, name, content)
    assert fragment in refusal(folder, name)


BAD_JSON = [
    (b"", "the file is empty"),
    (b" \n", "the file is empty"),
    (b"{", "is not JSON"),
    (b"[1]", "contains a JSON list"),
    (b'{"a": 1, "b": {"c": 1, "c": 2}}', "the key c appears twice"),
    (b'{"a": ' + b"9" * 5000 + b"}", "5000 digits"),
    (b'{"a": ' + b"[" * 65 + b"1" + b"]" * 65 + b"}", ""),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deeply"),
    (b'{"' + b"k" * 300_000 + b'": 1, "' + b"k" * 300_000 + b'": 2}', "appears twice"),
    (b'{"a": "' + b"\\ud800" * 50_000 + b"}", "is not JSON"),
    (b'{"a": [' + b"[]," * 5_000_000 + b"1]}", ""),
]


@pytest.mark.parametrize("name", JSON)
@pytest.mark.parametrize(("content", "fragment"), BAD_JSON, ids=range(len(BAD_JSON)))
def test_bad_json(folder: Path, name: str, content: bytes, fragment: str) -> None:
    place(folder, name, content)
    assert fragment in refusal(folder, name)


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.json"])
def test_numbers_that_are_not_finite(folder: Path, name: str) -> None:
    place(folder, name, b'{"a": NaN}')
    assert "NaN is not a finite number" in refusal(folder, name)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json", "config.json"])
@pytest.mark.parametrize("text", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_in_fields_that_nobody_reads(folder: Path, name: str, text: str) -> None:
    expected = READERS[name](folder)
    path = folder / name
    path.write_text(path.read_text().rstrip().removesuffix("}") + f', "training_noise": {text}}}')
    assert READERS[name](folder) == expected


@pytest.mark.parametrize("name", READERS)
def test_a_byte_order_mark_is_tolerated(folder: Path, name: str) -> None:
    path = place(folder, name, (folder / name).read_bytes())
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    READERS[name](folder)


def test_duplicate_tokens_of_the_vocabulary(folder: Path) -> None:
    """The library that builds the tokenizer would take the last of them."""
    path = folder / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    assert text.count('"vocab": {') == 1
    path.write_text(text.replace('"vocab": {', '"vocab": {"!": 7, '), encoding="utf-8")
    assert "the key ! appears twice" in refusal(folder, "tokenizer.json")


def test_more_values_than_any_file_has(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_file, "_MAX_VALUES", 50)
    for name in ("tokenizer.json", "generation_config.json"):
        (folder / name).write_text(json.dumps({"a": list(range(100))}))
        assert "more than 50 values" in refusal(folder, name)


def test_files_that_macos_adds_are_no_files_of_a_checkpoint(tiny: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny, tmp_path / "copy"))
    double = b"\x00\x05\x16\x07\x00\x02\x00\x00Mac OS X        " + bytes(60)
    for file in list(copy.iterdir()):
        (copy / f"._{file.name}").write_bytes(double)
    (copy / "._model.safetensors.index.json").write_bytes(double)
    (copy / "._model-00001-of-00002.safetensors").write_bytes(double)
    assert read_checkpoint(copy).text_tensors == read_checkpoint(tiny).text_tensors
    for read in READERS.values():
        read(copy)
    with pytest.raises(LilyError, match="AppleDouble"):
        read_checkpoint(copy / "._model.safetensors")


def test_the_template_of_vision_models(folder: Path) -> None:
    place(folder, "chat_template.json", json.dumps({"chat_template": "from json"}).encode())
    assert ChatTemplate.from_directory(folder).source == "from json"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "from the tokenizer"}))
    assert ChatTemplate.from_directory(folder).source == "from the tokenizer"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert ChatTemplate.from_directory(folder).source == "from jinja"


@pytest.mark.parametrize("content", [{}, {"chat_template": None}])
def test_a_template_file_without_a_template(folder: Path, content: dict[str, object]) -> None:
    place(folder, "chat_template.json", json.dumps(content).encode())
    with pytest.raises(TemplateError, match="no chat template, neither"):
        ChatTemplate.from_directory(folder)


def test_errors_do_not_quote_what_is_long(folder: Path) -> None:
    long = "x" * 300_000
    for name, content in (
        ("generation_config.json", {"do_sample": long}),
        ("generation_config.json", {"temperature": [long]}),
        ("generation_config.json", {"eos_token_id": long}),
        ("generation_config.json", {"eos_token_id": [long]}),
        ("generation_config.json", {"eos_token_id": [[[long]]]}),
        ("generation_config.json", {"eos_token_id": 10**500}),
        ("tokenizer_config.json", {"eos_token": long}),
        ("tokenizer_config.json", {"chat_template": "{% " + long + " %}"}),
        ("chat_template.jinja", "{% " + long + " %}"),
        ("chat_template.jinja", "{{ x | " + long + " }}"),
        ("tokenizer.json", {long: long}),
        ("tokenizer.json", {"version": long}),
    ):
        original = (folder / name).read_bytes()
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(LilyError) as caught:
            if name.startswith("tokenizer_config") and "chat_template" in content:
                (folder / "chat_template.jinja").rename(folder / "aside")
                ChatTemplate.from_directory(folder)
            tokenizer = Tokenizer.from_directory(folder)
            ChatTemplate.from_directory(folder)
            read_generation_defaults(folder)
            read_stop_tokens(folder, vocab_size=10_000, tokenizer=tokenizer)
        assert len(str(caught.value)) < 800, name
        (folder / name).write_bytes(original)
        if (folder / "aside").exists():
            (folder / "aside").rename(folder / "chat_template.jinja")


def test_text_from_outside_is_encoded_as_before(folder: Path, tokenizer: Tokenizer) -> None:
    """Without its added tokens the vocabulary is the same one, not a second copy."""
    for text in ("<|im_end|>", "plain <think> text </think>\n", "é 漢 🙂 <|endoftext|>"):
        ids = tokenizer.encode(text, parse_special=False)
        assert tokenizer.decode(ids) == text
        assert not set(ids) & set(tokenizer.added_tokens.values())
    assert issubclass(TokenizerError, LilyError)
