"""Evaluates Lily on lily-tiny: perplexity of the held-out text, accuracy of greedy answers to the skills.

    python tests/support/evaluate.py [MODEL] [--backend NAME] [--off MECHANISM ...] [--threads N]
                             [--documents N] [--prompts N] [--json FILE]

MODEL is anything that lily.Model.load takes; "lily-tiny" if left out. Perplexity: every document on its own,
its first token not counted. Answers are greedy and scored on the text after the thinking block by the
record's `check`:

    exact       the text equals the expected one
    contains    the text contains the expected one
    json        both parse to the same JSON value
    tool_calls  the same calls in the same order: names and arguments, numbers compared as numbers
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import lily_tiny
from oracles.compare import perplexity

CALL = re.compile(r"<tool_call>\s*<function=([^>\n]+)>\s*(.*?)</function>\s*</tool_call>", re.DOTALL)
PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
TOOL_SKILLS = frozenset(["tool", "tool2", "result", "chain", "notool"])
STOP_WORDS = ("<|im_end|>", "<|endoftext|>")
ANSWER_TOKENS = 400
COUNTING_TOKENS = 1400  # the skill "count" writes long lists


@dataclass(frozen=True)
class Answer:
    """One greedy answer and whether its record accepts it."""

    id: str
    skill: str
    correct: bool
    text: str


def split_answer(text: str, thinking: bool) -> tuple[str, list[dict[str, Any]]]:
    """The visible text and the tool calls; an unfinished thinking block counts as text."""
    if thinking:
        _, closed, rest = text.partition("</think>")
        if not closed:
            return text, []
        text = rest
    calls = [{"name": name, "arguments": dict(PARAMETER.findall(body))} for name, body in CALL.findall(text)]
    return text.partition("<tool_call>")[0].strip(), calls


def same_argument(given: str, expected: Any) -> bool:
    """Arguments arrive as text: strings as they are, numbers by value, all else as JSON."""
    if isinstance(expected, str):
        return given == expected
    if isinstance(expected, bool) or not isinstance(expected, (int, float)):
        return given == json.dumps(expected, ensure_ascii=False)
    try:
        return float(given) == expected
    except ValueError:
        return False


def same_call(given: dict[str, Any], expected: dict[str, Any]) -> bool:
    arguments, wanted = given["arguments"], expected["arguments"]
    return (
        given["name"] == expected["name"]
        and arguments.keys() == wanted.keys()
        and all(same_argument(arguments[name], value) for name, value in wanted.items())
    )


def is_correct(record: dict[str, Any], text: str) -> bool:
    """Whether an answer satisfies its record."""
    content, calls = split_answer(text, record["chat_template_kwargs"]["enable_thinking"])
    expected = record["expected"]
    if record["check"] == "tool_calls":
        wanted = expected["tool_calls"]
        return len(calls) == len(wanted) and all(map(same_call, calls, wanted))
    if calls:
        return False
    if record["check"] == "contains":
        return expected["content"] in content
    if record["check"] == "exact":
        return content == expected["content"].strip()
    assert record["check"] == "json", record["check"]
    try:
        return json.loads(content) == json.loads(expected["content"])
    except ValueError:
        return False


def skill_records() -> list[dict[str, Any]]:
    """All prompts with their expected answers."""
    lines = (lily_tiny.EVALUATION / "skills_eval.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]


def reference_results(name: str = "reference_4bit") -> dict[str, Any]:
    """The published results and greedy outputs of the reference implementation."""
    return json.loads((lily_tiny.EVALUATION / f"{name}.json").read_text(encoding="utf-8"))


def greedy(model: Any, prompt: Sequence[int], limit: int, stop_tokens: frozenset[int]) -> list[int]:
    """At most `limit` most likely tokens, without the stop token."""
    answer: list[int] = []
    with model.session() as session:
        logits = session.prefill(prompt)
        while (token := int(np.argmax(logits))) not in stop_tokens:
            answer.append(token)
            if len(answer) == limit:
                break
            logits = session.decode(token)
    return answer


def answer_all(model: Any, records: Sequence[dict[str, Any]]) -> list[Answer]:
    """Greedy answers to the records."""
    tokenizer = lily_tiny.tokenizer()
    stop_tokens = frozenset(tokenizer.token_to_id(word) for word in STOP_WORDS)
    answers = []
    for record in records:
        prompt = model.render_chat(
            record["messages"],
            tools=record.get("tools"),
            add_generation_prompt=True,
            **record["chat_template_kwargs"],
        )
        limit = COUNTING_TOKENS if record["skill"] == "count" else ANSWER_TOKENS
        text = tokenizer.decode(greedy(model, prompt, limit, stop_tokens), skip_special_tokens=False)
        answers.append(Answer(record["id"], record["skill"], is_correct(record, text), text))
    return answers


def accuracy(answers: Sequence[Answer], chosen: Callable[[Answer], bool] = lambda answer: True) -> float:
    """The share of correct ones among the chosen answers."""
    return float(np.mean([answer.correct for answer in answers if chosen(answer)]))


def tool_accuracy(answers: Sequence[Answer]) -> float:
    return accuracy(answers, lambda answer: answer.skill in TOOL_SKILLS)


def by_skill(answers: Sequence[Answer]) -> dict[str, str]:
    """{"tool": "34/40", ...}"""
    total = Counter(answer.skill for answer in answers)
    correct = Counter(answer.skill for answer in answers if answer.correct)
    return {skill: f"{correct[skill]}/{count}" for skill, count in total.items()}


def same_outputs(answers: Sequence[Answer], reference: dict[str, Any]) -> float:
    """The share of answers whose text is the reference's, character for character."""
    expected = {output["id"]: output["output"] for output in reference["outputs"]}
    return float(np.mean([answer.text == expected[answer.id] for answer in answers]))


def heldout_perplexity(model: Any, limit: int | None = None) -> tuple[float, int]:
    """Perplexity of the first `limit` documents and the number of tokens scored."""
    scores = []
    for ids in lily_tiny.document_ids()[:limit]:
        with model.session() as session:
            scores.append(np.asarray(session.score(ids.tolist())))
    joined = np.concatenate(scores)
    return perplexity(joined), len(joined)


def main() -> None:
    import lily

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="lily-tiny")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--off", nargs="*", default=[], help="mechanisms of the GPU engine to switch off")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--documents", type=int, help="how many held-out documents; 0 for none")
    parser.add_argument("--prompts", type=int, help="how many prompts; 0 for none")
    parser.add_argument("--json", type=Path, help="where to write the results with all outputs")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    switches = None if options.backend == "cpu" else lily.GpuOptions().without(*options.off)
    with lily.Model.load(options.model, backend=options.backend, options=switches, threads=options.threads) as model:
        if options.documents != 0:
            results["perplexity"], results["tokens"] = heldout_perplexity(model, options.documents)
            print(f"perplexity {results['perplexity']:.4f} over {results['tokens']} tokens", flush=True)
        if options.prompts != 0:
            answers = answer_all(model, skill_records()[: options.prompts])
            reference = reference_results()
            results.update(skills=by_skill(answers), overall=accuracy(answers))
            results["same_outputs"] = same_outputs(answers, reference)
            results["outputs"] = [asdict(answer) for answer in answers]
            for skill, figure in results["skills"].items():
                print(f"{skill:8} {figure:>6}   reference {reference['results']['skills'][skill]}")
            print(f"all skills {results['overall']:.4f}, reference {reference['results']['overall']}")
            print(f"outputs equal to the reference's: {results['same_outputs']:.1%}")
    if options.json:
        options.json.write_text(json.dumps(results, ensure_ascii=False, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
