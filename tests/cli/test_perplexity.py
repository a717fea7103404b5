"""Tests of lily perplexity: documents, their first tokens, limits, and the figures."""

import json
import math

import pytest

from lily.cli import main

pytest.importorskip("typer")


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(
        "First document.\nStill the first.\f\nSecond one\x0c inside <|im_end|>\n\f\n\f\nx", encoding="utf-8"
    )
    return path


def documents_of(model):
    texts = ["First document.\nStill the first.", "Second one\x0c inside <|im_end|>\n"]
    return [model.tokenizer.encode(text, parse_special=False) for text in texts]


def test_documents_are_scored_one_by_one(fake, text_file, capsys):
    model = fake()
    assert main(["perplexity", str(text_file), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    documents = documents_of(model)
    # The empty document and the one of a single token leave nothing to score.
    assert model.sessions[0].scored == documents
    counted = [token for ids in documents for token in ids[1:]]
    assert result["tokens"] == len(counted)
    assert result["documents"] == 2
    assert result["mean_loss"] == pytest.approx(sum(counted) / len(counted) / 1000, rel=1e-5)
    assert result["perplexity"] == pytest.approx(math.exp(sum(counted) / len(counted) / 1000), rel=1e-5)


def test_plain_output_and_model_argument(fake, text_file, capsys):
    model = fake()
    assert main(["perplexity", "some-model", str(text_file)]) == 0
    assert model.loaded_with["source"] == "some-model"
    assert capsys.readouterr().out.startswith("perplexity ")


def test_standard_input(fake, stdin, capsys):
    model = fake()
    stdin("some text to score")
    assert main(["perplexity", "-"]) == 0
    assert model.sessions[0].scored == [model.tokenizer.encode("some text to score")]


@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_max_tokens(fake, text_file, capsys, limit):
    model = fake()
    assert main(["perplexity", str(text_file), "--json", "--max-tokens", str(limit)]) == 0
    available = sum(len(ids) - 1 for ids in documents_of(model))
    assert json.loads(capsys.readouterr().out)["tokens"] == min(limit, available)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"", "nothing to score"), (b"x", "nothing to score"), (b"\xff\xfe", "not UTF-8")]
)
def test_texts_without_anything_to_score(fake, tmp_path, capsys, content, reason):
    fake()
    (tmp_path / "text.txt").write_bytes(content)
    assert main(["perplexity", str(tmp_path / "text.txt")]) == 1
    assert reason in capsys.readouterr().err


def test_a_missing_file_is_named(fake, tmp_path, capsys):
    model = fake()
    assert main(["perplexity", str(tmp_path / "none.txt")]) == 1
    assert "none.txt: cannot be read" in capsys.readouterr().err
    assert not model.loaded_with  # before the model is loaded
