"""Notebooks: the example runs, answers appear in place, and everything that is shown is escaped."""

import os
import sys
from pathlib import Path

import pytest

import lily.notebook
from lily import Sampling
from lily.chat import Answer, Done, Timings, ToolCall, Usage

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs").glob("*.ipynb"))
assert NOTEBOOKS
SPOOF = "<script>alert(1)</script>"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_the_notebooks_run(path, tmp_path, monkeypatch):
    nbclient = pytest.importorskip("nbclient", reason="needs the extra for notebooks")
    pytest.importorskip("ipykernel", reason="needs the extra for notebooks")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without outputs
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(os.path.abspath, sys.path)))  # this Lily, from any folder
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources).execute()
    outputs = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            key = cell.source.splitlines()[-1]
            outputs.setdefault(key, [one.get("data", {}) for one in cell.outputs])
    assert "linear attention" in outputs["model"][0]["text/html"]
    [shown] = outputs['answer = lily.notebook.show(chat.send("Hello!"))']  # one output, updated in place
    assert "Hello" in shown["text/markdown"]
    assert "tokens/s" in shown["text/markdown"]
    assert "roll_dice" in outputs["chat"][0]["text/html"]
    assert "of 4,096 tokens" in outputs["session"][0]["text/html"]


def test_an_interrupt_leaves_a_usable_chat(model, monkeypatch):
    pytest.importorskip("IPython", reason="needs the extra for notebooks")
    chat = model.chat(thinking=False, sampling=Sampling.greedy())
    stream = chat.send("Hello!", max_tokens=30)

    def interrupted():
        try:
            yield next(stream)
            raise KeyboardInterrupt
        finally:
            stream.close()

    with pytest.raises(KeyboardInterrupt):
        lily.notebook.show(interrupted())
    assert chat.messages[-1]["role"] == "assistant"
    answer = lily.notebook.show(chat.send("And now?", max_tokens=10))
    assert answer.done.usage.completion_tokens > 0
    assert chat.messages[-1]["content"] == answer.content


def test_texts_are_escaped(model):
    call = {"function": {"name": SPOOF, "arguments": {SPOOF: SPOOF}}}
    messages = [
        {"role": "system", "content": SPOOF},
        {"role": "user", "content": [{"type": "text", "text": SPOOF}]},
        {"role": "assistant", "content": SPOOF, "reasoning_content": SPOOF, "tool_calls": [call]},
    ]
    chat = model.chat(messages=messages)
    assert "<script>" not in chat._repr_html_()
    assert chat._repr_html_().count("&lt;script&gt;") == 7
    with model.prefill(model.tokenizer.encode(SPOOF)) as session:
        assert "&lt;script&gt;" in session._repr_html_()
    answer = Answer("", SPOOF, (ToolCall(SPOOF, {"a": "```"}),), Done("stop", Usage(1, 2), Timings(1, 1)))
    assert "<script>" not in answer._repr_markdown_()
    assert answer._repr_markdown_().count("```") == 2


def test_states_without_much_to_show(tiny):
    from lily import Model

    loaded = Model.load(tiny, threads=1, max_context=64)
    session = loaded.session()
    assert "0 of 64 tokens" in session._repr_html_()
    assert "without messages" in loaded.chat()._repr_html_()
    session.close()
    assert "closed" in session._repr_html_()
    loaded.close()
    assert "closed" in loaded._repr_html_()
