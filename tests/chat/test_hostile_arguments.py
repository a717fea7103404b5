"""Every parameter of every public function, given what nobody should give: a result or a LilyError."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lily
from hostile_values import HOSTILE, MidwayError
from lily.chat import PythonTool, TurnOptions, collect, normalize_messages
from lily.errors import LilyError
from lily.notebook import show
from lily.text import ChatTemplate, StreamingDetokenizer, Tokenizer

LONGEST_MESSAGE = 1200  # characters, with what a message lists; a value in it has far less
USER = {"role": "user", "content": "Hi"}
GREEDY = lily.Sampling.greedy()


class World:
    """What the calls are made on."""

    def __init__(self, model: lily.Model, tiny: Path, folder: Path) -> None:
        self.model, self.tiny, self.folder = model, tiny, folder
        self.ids = model.tokenizer.encode("Once upon a time")
        self.base = model.prefill(self.ids)
        self.saved = folder / "saved"
        self.base.save(self.saved)

    def session(self) -> lily.Session:
        return self.base.fork(seed=1)

    def load(self, **options: Any) -> None:
        lily.Model.load(self.tiny, threads=1, **options).close()

    def chat(self, **options: Any) -> Any:
        return self.model.chat(thinking=False, sampling=GREEDY, **options)

    def ask(self, content: Any = "Hi", **options: Any) -> Any:
        return self.chat().ask(content, **{"max_tokens": 1, **options})


def looks_like_a_path(value: Any) -> bool:
    """A folder of that name would be made."""
    return isinstance(value, (str, Path)) and value not in ("", "\0", "\ud800")


def is_empty_text(value: Any) -> bool:
    """The current directory, which no session replaces: an OSError."""
    return isinstance(value, str) and value == ""


def with_call(**fields: Any) -> list[Any]:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [USER, {"role": "assistant", "tool_calls": [{**call, **fields}]}, {"role": "tool", "content": "x"}, USER]


def with_function(**fields: Any) -> list[Any]:
    return with_call(function={"name": "f", "arguments": "{}", **fields})


def feed(detokenizer: StreamingDetokenizer, token: Any) -> None:
    detokenizer.feed(token)


def first(generation: Any) -> Any:
    return next(iter(generation), None)


#: By "function.parameter": the call with the value there.
DOORS: dict[str, Callable[[World, Any], object]] = {
    **{
        f"Model.load.{name}": lambda w, v, name=name: w.load(**{name: v})
        for name in [
            "backend",
            "options",
            "max_context",
            "memory_limit",
            "prefill_chunk",
            "weights",
            "cpu_isa",
            "kv_cache_type",
            "prefix_cache_bytes",
            "snapshot_interval",
            "prefix_cache_disk_bytes",
            "progress",
        ]
    },
    "Model.load.source": lambda w, v: lily.Model.load(v, threads=1),
    "Model.load.prefix_cache_dir": lambda w, v: w.load(prefix_cache_dir=None if looks_like_a_path(v) else v),
    "Model.load.threads": lambda w, v: lily.Model.load(w.tiny, threads=v),
    "Model.session.seed": lambda w, v: w.model.session(seed=v).close(),
    "Model.prefill.ids": lambda w, v: w.model.prefill(v).close(),
    "Model.prefill.progress": lambda w, v: w.model.prefill([1], progress=v).close(),
    "Model.cached_session.ids": lambda w, v: w.model.cached_session(v).close(),
    "Model.cached_session.snapshot_at": lambda w, v: w.model.cached_session(w.ids, snapshot_at=v).close(),
    "Model.cached_session.progress": lambda w, v: w.model.cached_session(w.ids, progress=v).close(),
    "Model.cached_session.seed": lambda w, v: w.model.cached_session(w.ids, seed=v).close(),
    "Model.load_session.path": lambda w, v: w.model.load_session(v).close(),
    "Model.load_session.seed": lambda w, v: w.model.load_session(w.saved, seed=v).close(),
    "Model.decode.session": lambda w, v: w.model.decode(v, 1),
    "Model.decode.token": lambda w, v: w.model.decode(w.session(), v),
    **{
        f"Model.chat.{name}": lambda w, v, name=name: w.model.chat(**{name: v, "max_tokens": 1}).ask("Hi")
        for name in [
            "system",
            "tools",
            "messages",
            "thinking",
            "preserve_thinking",
            "sampling",
            "stop",
            "response_format",
            "tool_choice",
            "later_system",
            "parallel_tool_calls",
            "max_thinking_tokens",
            "thinking_end",
            "logprobs",
            "call_deltas",
            "seed",
            "template_options",
        ]
    },
    "Model.chat.max_tokens": lambda w, v: w.chat(max_tokens=v),
    "Model.chat.template_options.value": lambda w, v: w.chat(template_options={"x": v}).ask("Hi", max_tokens=1),
    "Model.render_chat.messages": lambda w, v: w.model.render_chat(v),
    "Model.render_chat.messages[0]": lambda w, v: w.model.render_chat([v]),
    "Model.render_chat.tools": lambda w, v: w.model.render_chat([USER], tools=v),
    "Model.render_chat.tools[0]": lambda w, v: w.model.render_chat([USER], tools=[v]),
    "Model.render_chat.add_generation_prompt": lambda w, v: w.model.render_chat([USER], add_generation_prompt=v),
    "Model.render_chat.enable_thinking": lambda w, v: w.model.render_chat([USER], enable_thinking=v),
    "Session.prefill.ids": lambda w, v: w.session().prefill(v),
    "Session.prefill.progress": lambda w, v: w.session().prefill([1], progress=v),
    "Session.decode.token": lambda w, v: w.session().decode(v),
    "Session.generate.max_tokens": lambda w, v: first(w.session().generate(v)),
    "Session.generate.sampling": lambda w, v: first(w.session().generate(1, sampling=v)),
    "Session.generate.stop_tokens": lambda w, v: first(w.session().generate(1, stop_tokens=v)),
    "Session.generation.max_tokens": lambda w, v: first(w.session().generation(v)),
    "Session.generation.logprobs": lambda w, v: first(w.session().generation(1, logprobs=v)),
    "Session.generation.mask": lambda w, v: first(w.session().generation(1, mask=v)),
    "Session.generation.mask()": lambda w, v: first(w.session().generation(1, mask=lambda: v)),
    "Generation.force.ids": lambda w, v: w.session().generation(5).force(v),
    "Session.score.ids": lambda w, v: w.session().score(v),
    "Session.score.progress": lambda w, v: w.session().score([1, 2], progress=v),
    "Session.score.return_argmax": lambda w, v: w.session().score([1, 2], return_argmax=v),
    "Session.score.targets": lambda w, v: w.session().score([1, 2], targets=v),
    "Session.fork.seed": lambda w, v: w.session().fork(v),
    "Session.restore.snapshot": lambda w, v: w.session().restore(v),
    "Session.save.path": lambda w, v: None if looks_like_a_path(v) or is_empty_text(v) else w.session().save(v),
    "PrefixCache.insert.session": lambda w, v: w.model.cache.insert(v),
    "PrefixCache.explain.ids": lambda w, v: w.model.cache.explain(v),
    "PrefixCache.explain.tokenizer": lambda w, v: w.model.cache.explain([1], v),
    **{
        f"Sampling.{name}": lambda w, v, name=name: first(w.session().generate(1, sampling=lily.Sampling(**{name: v})))
        for name in [
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "logit_bias",
        ]
    },
    "Sampling.logit_bias.key": lambda w, v: lily.Sampling(logit_bias={v: 1.0} if isinstance(v, Hashable) else {}),
    "Sampling.logit_bias.value": lambda w, v: lily.Sampling(logit_bias={1: v}),
    "Sampling.profile.name": lambda w, v: lily.Sampling.profile(v),
    "Options.without": lambda w, v: lily.GpuOptions().without(v),
    "lily.plan.checkpoint": lambda w, v: lily.plan(v, 10),
    **{
        f"lily.plan.{name}": lambda w, v, name=name: lily.plan(w.tiny, **{"context": 10, name: v})
        for name in ("context", "threads", "prefill_chunk")
    },
    "lily.step_report.config": lambda w, v: lily.step_report(v, phase="decode", context=1),
    **{
        f"lily.step_report.{name}": lambda w, v, name=name: lily.step_report(
            w.tiny, **{"phase": "prefill", "context": 1, name: v}
        )
        for name in ("phase", "context", "rows", "options")
    },
    "Tokenizer.source": lambda w, v: Tokenizer(v),
    "Tokenizer.from_directory": lambda w, v: Tokenizer.from_directory(v),
    "Tokenizer.from_file": lambda w, v: Tokenizer.from_file(v),
    "Tokenizer.token_id": lambda w, v: w.model.tokenizer.token_id(v),
    "Tokenizer.encode.text": lambda w, v: w.model.tokenizer.encode(v),
    "Tokenizer.encode.parse_special": lambda w, v: w.model.tokenizer.encode("x", parse_special=v),
    "Tokenizer.decode.ids": lambda w, v: w.model.tokenizer.decode(v),
    "Tokenizer.decode.skip_special": lambda w, v: w.model.tokenizer.decode([1], skip_special=v),
    "Tokenizer.token_bytes": lambda w, v: w.model.tokenizer.token_bytes(v),
    "Tokenizer.is_special": lambda w, v: w.model.tokenizer.is_special(v),
    "Tokenizer.detokenizer.skip_special": lambda w, v: feed(w.model.tokenizer.detokenizer(skip_special=v), 1),
    "StreamingDetokenizer.feed": lambda w, v: feed(w.model.tokenizer.detokenizer(), v),
    "ChatTemplate.source": lambda w, v: ChatTemplate(v),
    "ChatTemplate.special_tokens": lambda w, v: ChatTemplate("{{ a }}", special_tokens=v).render([USER]),
    "ChatTemplate.from_directory": lambda w, v: ChatTemplate.from_directory(v),
    "ChatTemplate.from_directory.name": lambda w, v: ChatTemplate.from_directory(w.tiny, v),
    "ChatTemplate.render.messages": lambda w, v: w.model.chat_template.render(v),
    "ChatTemplate.render.tools": lambda w, v: w.model.chat_template.render([USER], v),
    "ChatTemplate.render.kwargs": lambda w, v: w.model.chat_template.render([USER], enable_thinking=v),
    "Chat.send.content": lambda w, v: w.ask(v),
    "Chat.send.content.part": lambda w, v: w.ask([v]),
    "Chat.send.content.text": lambda w, v: w.ask([{"type": "text", "text": v}]),
    "Chat.send.progress": lambda w, v: first(w.chat().send("Hi", progress=v, max_tokens=1)),
    **{
        f"Chat.send.{name}": lambda w, v, name=name: w.ask(**{name: v})
        for name in [
            "sampling",
            "stop",
            "response_format",
            "tool_choice",
            "parallel_tool_calls",
            "max_thinking_tokens",
            "thinking_end",
            "logprobs",
            "call_deltas",
        ]
    },
    "Chat.send.max_tokens": lambda w, v: first(w.chat().send("Hi", max_tokens=v)),
    **{
        f"response_format.{name}": lambda w, v, name=name: w.ask(response_format={"type": "regex", name: v})
        for name in ("type", "regex")
    },
    "tool_choice.name": lambda w, v: w.chat(tools=[{"name": "f"}], tool_choice={"name": v}).ask("Hi", max_tokens=1),
    "tool_choice.type": lambda w, v: w.chat(tools=[{"name": "f"}], tool_choice={"type": v}).ask("Hi", max_tokens=1),
    "Chat.add_tool_result.result": lambda w, v: w.chat(messages=with_call()[:2]).add_tool_result("1", v),
    "collect": lambda w, v: collect(v),
    "notebook.show": lambda w, v: show(v),
    "lily.ablate.model": lambda w, v: lily.ablate(v, backend="cpu"),
    **{
        f"lily.ablate.{name}": lambda w, v, name=name: lily.ablate(w.tiny, **{"backend": "cpu", name: v})
        for name in ("backend", "mechanisms", "prompt", "context", "decode", "runs")
    },
    **{
        f"Options.{field.name}": lambda w, v, name=field.name: lily.step_report(
            w.tiny, phase="decode", context=1, options=lily.GpuOptions(**{name: v})
        )
        for field in dataclasses.fields(lily.GpuOptions)
    },
    "Chat.alternatives.count": lambda w, v: first(w.chat().alternatives("Hi", count=v, max_tokens=1)),
    "Chat.run.max_rounds": lambda w, v: w.chat().run("Hi", max_rounds=v, max_tokens=1),
    "Chat.run.tools": lambda w, v: w.chat().run("Hi", tools=v, max_tokens=1),
    "Chat.run.on_event": lambda w, v: w.chat().run("Hi", on_event=v, max_tokens=1),
    "Chat.add_tool_result.call": lambda w, v: w.chat().add_tool_result(v, "x"),
    "Chat.reset.messages": lambda w, v: w.chat().reset(v),
    **{
        f"messages.{name}": lambda w, v, name=name: w.chat(
            messages=[USER, {"role": "assistant", "content": "x", name: v}, USER]
        ).ask(max_tokens=1)
        for name in ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")
    },
    "messages.tool.content": lambda w, v: w.chat(messages=[USER, {"role": "tool", "content": v}]).ask(max_tokens=1),
    "messages.call": lambda w, v: w.chat(messages=[USER, {"role": "assistant", "tool_calls": [v]}, USER]).ask(
        max_tokens=1
    ),
    "messages.call.id": lambda w, v: w.chat(messages=with_call(id=v)).ask(max_tokens=1),
    "messages.call.function": lambda w, v: w.chat(messages=with_call(function=v)).ask(max_tokens=1),
    "messages.call.name": lambda w, v: w.chat(messages=with_function(name=v)).ask(max_tokens=1),
    "messages.call.arguments": lambda w, v: w.chat(messages=with_function(arguments=v)).ask(max_tokens=1),
    "messages.call.argument": lambda w, v: w.chat(messages=with_function(arguments={"a": v})).ask(max_tokens=1),
    "tools[0]": lambda w, v: w.chat(tools=[v]),
    "tools[0].name": lambda w, v: w.chat(tools=[{"name": v}]).ask("Hi", max_tokens=1),
    "tools[0].description": lambda w, v: w.chat(tools=[{"name": "f", "description": v}]).ask("Hi", max_tokens=1),
    "tools[0].parameters": lambda w, v: w.chat(tools=[{"name": "f", "parameters": v}]).ask("Hi", max_tokens=1),
    "TurnOptions.changed": lambda w, v: TurnOptions().changed(v),
    "TurnOptions.of": lambda w, v: TurnOptions.of(v),
    "PythonTool": lambda w, v: PythonTool(v),
    "normalize_messages": lambda w, v: normalize_messages(v),
    "normalize_messages.later_system": lambda w, v: normalize_messages([USER], later_system=v),
}


@pytest.fixture(scope="module")
def world(model, tiny, tmp_path_factory) -> World:
    return World(model, tiny, tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("share", [2, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("door", DOORS)
def test_only_errors_of_our_own(world, door, share):
    """Half of the values, the other half at the next door; all of them with -m slow."""
    wrong = []
    for name, make in list(HOSTILE.items())[list(DOORS).index(door) % share :: share]:
        with contextlib.ExitStack() as stack:
            value = make()
            stack.callback(emptied, value)
            try:
                DOORS[door](world, value)
            except MidwayError:
                pass
            except LilyError as error:
                text = str(error)
                if len(text) > LONGEST_MESSAGE or any(part in text for part in ("x" * 201, "9" * 201, "[" * 201)):
                    wrong.append(f"{name}: a message of {len(text)} characters: {text[:300]}")
                text.encode()  # can be printed on any terminal
            except BaseException as error:
                wrong.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
    assert wrong == []
    assert np.array_equal(world.base.logits, world.model.prefill(world.ids).logits)


def emptied(value: object) -> None:
    """Free deep values level by level."""
    while isinstance(value, list) and len(value) == 1 and value[0] is not value:
        value = value.pop()


def test_the_largest_numbers_that_are_allowed(world):
    """And NumPy's scalars, which are numbers like others."""
    model = world.model
    for seed in (0, 2**64 - 1, np.uint64(2**64 - 1)):
        assert lily.Sampling(seed=seed).seed == seed
        with model.session(seed=seed) as session:
            session.prefill(world.ids)
            assert len(list(session.generate(3, sampling=lily.Sampling(), stop_tokens=()))) == 3
    for seed in (2**64, -1, 1.0, True):
        with pytest.raises(LilyError, match="seed must be a whole number from 0 to 18,446,744,073,709,551,615"):
            model.session(seed=seed)
    assert lily.Sampling(top_k=2**63 - 1).top_k == 2**63 - 1
    with pytest.raises(LilyError, match="top_k must be a whole number"):
        lily.Sampling(top_k=2**63)
    given = lily.Sampling(temperature=np.float32(0.5), top_k=np.int64(3), top_p=np.float64(1))
    assert given == lily.Sampling(temperature=0.5, top_k=3, top_p=1.0)
    with world.session() as session:
        assert len(list(session.generate(np.int64(2), sampling=GREEDY, stop_tokens=np.array([0])))) == 2


def test_a_mask_that_is_none_is_refused_and_the_session_goes_on(world):
    words = (world.model.sampled_vocab_size + 31) // 32
    whole = np.full(words, 0xFFFFFFFF, np.uint32)
    wrong = [whole.tolist(), whole[:-1], whole.astype(np.int32), whole.astype(">u4"), whole[None], "x", 5, b"x" * 4096]
    with world.session() as session:
        generation = session.generation(3, sampling=GREEDY, stop_tokens=())
        for mask in wrong:
            generation.mask = lambda mask=mask: mask
            with pytest.raises(LilyError, match="a mask must be"):
                next(generation)
        generation.mask = whole  # an array, and no function
        with pytest.raises(LilyError, match="mask must be callable"):
            next(generation)
        generation.mask = lambda: whole
        masked = [token.id for token in generation]
    with world.session() as session:
        assert masked == list(session.generate(3, sampling=GREEDY, stop_tokens=()))


def test_messages_are_short_and_keep_their_ends():
    error = LilyError(f"{'a ' * 50_000}{'b' * 300_000} the remedy \ud800")
    assert len(str(error)) < 4100
    assert str(error).startswith("a a a") and str(error).endswith("the remedy \\ud800")
    assert str(LilyError("word " * 700)) == "word " * 700
    path = "/folder" * 40
    assert path in str(LilyError(f"{path}: is missing"))
