"""Checkpoints of strangers, files changed at random: each ends in a model or soon in one of Lily's errors."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .figures import MIB, Figures
from .file_mutations import mutate_bytes, replace_by_another_kind, resize
from .isolated import attempt_all, outcome_of
from .json_mutations import hostile_json, mutated_json
from .limits import Limits

__all__ = ["attack"]

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "python" / "lily" / "data" / "lily-tiny"
SIDE_FILES = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
# A rendering may take 5 s of processor time, of which an attempt makes several, and a value 64 million characters.
SECONDS_EACH, BYTES_EACH = 30, 1536 * MIB
TEMPLATES = (
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(999999) %}{% for j in range(999999) %}{% endfor %}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ ('a' * 10**6) | replace('a', 'b' * 10**6) }}",
    "{{ '%0999999999d' % 1 }}",
    "{{ 'x' | center(10**10) }}",
    "{{ 10**10**10 }}",
    "{{ 2**(2**40) }}",
    "{{ messages.__class__.__mro__ }}",
    "{{ ''.__class__.__base__.__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ self._TemplateReference__context }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% macro f(n) %}{{ caller() }}{{ f(n) }}{% endmacro %}{% call f(1) %}x{% endcall %}",
    "{% set x = namespace(a='ab') %}{% for i in range(60) %}{% set x.a = x.a ~ x.a %}{% endfor %}{{ x.a }}",
    "{% set x = namespace(a=[0]) %}{% for i in range(60) %}{% set x.a = [x.a, x.a] %}{% endfor %}{{ x.a | tojson }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ range(10**18) | list }}",
    "{{ range(900000) | map('string') | join('x' * 10000) }}",
    "{{ raise_exception('no' * 10**6) }}",
    "{{ strftime_now('%Y' * 10**6) }}",
    "{{ messages | batch(10**12) | list }}",
    "{{ messages | slice(10**12) | list }}",
    "{{ 'a'.format(*range(10)) }}{{ '{0.__class__}'.format(1) }}{{ '{:>9999999999}'.format(1) }}",
    "{{ 'aaaa' | indent(10**10) }}",
    "{{ ('a,' * 10**6).split(',') | sum(start='') }}",
    "{{ messages.append(1) }}",
    "{{ undefined_thing.x.y }}",
    "{% if messages %}" * 3000 + "{% endif %}" * 3000,
    "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}",
    "{{ " + " ~ ".join(["'a'"] * 20000) + " }}",
    "{{ 'a' | xmlattr }}{{ 1 | filesizeformat }}{{ 'x' | truncate(-1) }}",
    "{% trans %}x{% endtrans %}",
    "{{ 1 / 0 }}{{ 1 % 0 }}{{ none + 1 }}",
    "{{ '\\ud800' }}",
    "\0\0\0",
)


def attack(limits: Limits) -> Figures:
    """Load checkpoints with changed files."""
    return attempt_all("checkpoints", prepare, attempt, limits, seconds_each=SECONDS_EACH, bytes_each=BYTES_EACH)


def small_checkpoint(folder: Path, seed: int = 5) -> Path:
    """A checkpoint of a few hundred kilobytes with all kinds of files."""
    sys.path.insert(0, str(ROOT / "tests" / "support"))
    import numpy as np

    from synthetic import random_config, write_checkpoint

    config = random_config(np.random.default_rng(seed), group_size=32, nested=True)
    config["text_config"] |= {"vocab_size": 4160, "hidden_size": 32}
    write_checkpoint(folder, config, seed=seed, group_size=32, shards=2)
    for name in SIDE_FILES:
        shutil.copy(TINY / name, folder / name)
    return folder


@dataclass(frozen=True)
class Base:
    files: dict[str, bytes]
    folder: Path


def prepare(folder: Path) -> Base:
    """The files of the checkpoint that is changed."""
    with tempfile.TemporaryDirectory(dir=folder) as written:
        small_checkpoint(Path(written))
        return Base({path.name: path.read_bytes() for path in sorted(Path(written).iterdir())}, folder)


def attempt(base: Base, rng: random.Random, seed: int) -> tuple[str, str]:
    """Change one to three files and use what loads."""
    with tempfile.TemporaryDirectory(dir=base.folder) as folder:
        path = Path(folder) / "checkpoint"
        path.mkdir()
        for name, content in base.files.items():
            (path / name).write_bytes(content)
        changes = [_change(path, rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
        return outcome_of(lambda: _use(path)), ", ".join(changes)


def _change(folder: Path, rng: random.Random) -> str:
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file() and not path.is_symlink()]
    name = rng.choice(names or ["config.json"])
    path = folder / name
    if not path.is_file() or path.stat().st_size > 8 * MIB:  # changed before
        return f"{name} again"
    kinds: list[Callable[[Path, random.Random], str]] = [mutate_bytes, mutate_bytes, resize, replace_by_another_kind]
    kinds += (
        [_header] * 4 if name.endswith(".safetensors") else [_json] * 5 if name.endswith(".json") else [_template] * 8
    )
    if rng.random() < 0.05:
        path.unlink()
        return f"{name} removed"
    if rng.random() < 0.05:
        return _additional(folder, rng)
    return f"{name} {rng.choice(kinds)(path, rng)}"


def _json(path: Path, rng: random.Random) -> str:
    try:
        path.write_bytes(mutated_json(path.read_text(), rng))
    except (ValueError, RecursionError):
        return "no JSON any more"
    return "values"


def _header(path: Path, rng: random.Random) -> str:
    """Change the header's values; its length fits, so that its content is read."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    try:
        header = mutated_json(content[8 : 8 + length].decode(), rng)
    except (ValueError, RecursionError):
        return "no header any more"
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[8 + length :])
    return "header"


def _template(path: Path, rng: random.Random) -> str:
    own = path.read_text(errors="replace")
    hostile = rng.choice(TEMPLATES)
    number = TEMPLATES.index(hostile)
    if rng.random() < 0.3:
        hostile = own.replace("message.content", hostile.strip("{}% "), 1)
    path.write_bytes((hostile if rng.random() < 0.7 else own + hostile).encode("utf-8", "surrogatepass"))
    return f"template {number}"


def _additional(folder: Path, rng: random.Random) -> str:
    """Files that a checkpoint need not have."""
    name = rng.choice(
        ("added_tokens.json", "special_tokens_map.json", "chat_template.json", "vocab.json", "merges.txt")
    )
    (folder / name).write_bytes(json.dumps({"chat_template": hostile_json(rng), "a": hostile_json(rng)}).encode())
    if rng.random() < 0.5:
        (folder / "additional_chat_templates").mkdir(exist_ok=True)
        (folder / "additional_chat_templates" / "default.jinja").write_text(rng.choice(TEMPLATES[:20]))
    (folder / "z.safetensors").write_bytes(rng.randbytes(rng.choice((0, 7, 8, 100))))
    return "additional files"


def _use(path: Path) -> None:
    """All that a program does with a checkpoint. Each part is tried, also behind one that was refused."""
    import lily

    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <|im_end|>"}]
    with lily.Model.load(path, threads=1, max_context=256, prefix_cache_bytes=0) as model:
        session = model.prefill([1, 2, 3, 4, 5])
        uses: tuple[Callable[[], object], ...] = (
            lambda: model.tokenizer.decode(model.tokenizer.encode("Hello, Wörld <|im_end|> 🙂" * 3)),
            lambda: model.render_chat(messages),
            lambda: model.stop_tokens,
            lambda: model.default_sampling,
            lambda: list(session.generate(max_tokens=3)),
            lambda: model.chat("Be brief.").ask("Hello", max_tokens=3),
        )
        errors = [error for use in uses if (error := _refusal(use)) is not None]
        if errors:
            raise errors[0]


def _refusal(use: Callable[[], object]) -> Exception | None:
    import lily

    try:
        use()
    except lily.LilyError as error:
        return error
    return None
