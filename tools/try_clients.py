"""Runs real coding clients against a server on this machine: a question, then a round that reads a file with a tool.

    mkdir /tmp/clients && cd /tmp/clients
    npm install @anthropic-ai/claude-code @openai/codex opencode-ai @qwen-code/qwen-code
    python tools/try_clients.py /tmp/clients                  # all four
    python tools/try_clients.py /tmp/clients --only codex --record /tmp/bodies

The server has the bundled model, which answers the question in its own words; their number is limited, since the
prompts of these clients are a hundred times longer than what it was trained with. It is too small to use their tools,
so that for the second round a mask makes it say the call; the file's text that it repeats afterwards is taken from its
prompt, so the client must have sent it. Each client has a home folder of its own. With the program unshare
(Linux) all of it runs in a network namespace that has nothing but loopback.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests"), str(ROOT / "python")]

QUESTION = "Hello, who are you?"
SECRET = "heron-4711"
READ = "Read the file note.txt and tell me the code word in it."
MOST_TOKENS = 40  # of thinking, and of an answer, in the model's own words
INSIDE = "LILY_CLIENTS_IN_NAMESPACE"


@dataclass(frozen=True)
class Client:
    """How to run a client: its program, its environment and files, and the call by which it reads a file."""

    program: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, str]  # under its home
    call: tuple[str, dict[str, str]]


def clients(url: str, folder: Path) -> dict[str, Client]:
    """The clients, set up for a server at `url` and a working folder."""
    note = str(folder / "note.txt")
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Lily",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"lily-tiny": {"name": "lily-tiny", "limit": {"context": 65536, "output": 4096}}},
    }
    codex = f"""\
model = "lily-tiny"
model_provider = "lily"
check_for_update_on_startup = false
[model_providers.lily]
name = "Lily"
base_url = "{url}/v1"
wire_api = "responses"
[analytics]
enabled = false
"""
    return {
        "claude": Client(
            "claude",
            ("-p", "{prompt}"),
            {
                "ANTHROPIC_BASE_URL": url,
                "ANTHROPIC_AUTH_TOKEN": "none",
                "ANTHROPIC_MODEL": "lily-tiny",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "DISABLE_AUTOUPDATER": "1",
            },
            {},
            ("Read", {"file_path": note}),
        ),
        "codex": Client(
            "codex",
            ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "{prompt}"),
            {},
            {".codex/config.toml": codex},
            ("exec_command", {"cmd": f"cat {note}"}),
        ),
        "opencode": Client(
            "opencode",
            ("run", "--model", "lily/lily-tiny", "{prompt}"),
            {
                "OPENCODE_DISABLE_AUTOUPDATE": "1",
                "OPENCODE_DISABLE_MODELS_FETCH": "1",
                "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
                "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
            },
            {".config/opencode/opencode.json": json.dumps({"provider": {"lily": provider}, "share": "disabled"})},
            ("read", {"filePath": note}),
        ),
        "qwen": Client(
            "qwen",
            ("-p", "{prompt}"),
            {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "lily-tiny"},
            {
                ".qwen/settings.json": json.dumps(
                    {
                        "privacy": {"usageStatisticsEnabled": False},
                        "general": {"disableAutoUpdate": True, "disableUpdateNag": True},
                        "security": {"auth": {"selectedType": "openai"}},
                    }
                )
            },
            ("read_file", {"file_path": note}),
        ),
    }


def call_text(name: str, arguments: dict[str, str]) -> str:
    """A call as the model writes it."""
    values = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


class Recorder:
    """Around the application: keeps requests and the status of their answers."""

    def __init__(self, app: Any, folder: Path | None) -> None:
        self.app = app
        self.folder = folder
        self.seen: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = bytearray()

        async def reading() -> Any:
            message = await receive()
            body.extend(message.get("body", b""))
            return message

        async def sending(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.keep(scope, bytes(body), message)
            await send(message)

        await self.app(scope, reading, sending)

    def keep(self, scope: Any, body: bytes, message: Any) -> None:
        headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        warned = headers.get("x-lily-warnings", "")
        self.seen.append(f"{scope['method']} {scope['path']} -> {message['status']} {warned}".rstrip())
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            (self.folder / f"{len(self.seen):02}{scope['path'].replace('/', '_')}.json").write_bytes(body)


def briefly(model: Any) -> Any:
    """A `Session.generation` that ends thinking and answer after some tokens, if the model does not."""
    import numpy as np

    from lily import Session

    generation = Session.generation
    close, end = model.tokenizer.token_id("</think>"), model.tokenizer.token_id("<|im_end|>")

    def generate(self: Any, *arguments: Any, **options: Any) -> Any:
        thinking = model.tokenizer.decode(self.tokens[-8:]).rstrip().endswith("<think>")
        made = generation(self, *arguments, **options)
        given = made.mask

        def mask() -> Any:
            tokens = made.tokens
            closed = not thinking or close in tokens
            begun = tokens.index(close) + 1 if thinking and closed else 0
            if len(tokens) - begun < MOST_TOKENS:
                return None if given is None else given()
            only = np.zeros((model.sampled_vocab_size + 31) // 32, dtype=np.uint32)
            token = end if closed else close
            only[token // 32] = 1 << (token % 32)
            return only

        made.mask = mask
        return made

    return generate


@contextlib.contextmanager
def served(reply: Any, record: Path | None) -> Iterator[tuple[str, Recorder]]:
    """The bundled model at a free loopback port; `reply` decides what it says."""
    import uvicorn

    import lily_tiny
    from lily import Model, Session
    from lily.server import ServerOptions, create_app
    from scripted_answers import saying

    with Model.load(lily_tiny.CHECKPOINT, max_context=65536) as model, socket.socket() as listener:
        Session.generation = briefly(model)
        Session.generation = saying(model, lambda session: reply(model.tokenizer.decode(session.tokens)))
        listener.bind(("127.0.0.1", 0))
        recorder = Recorder(create_app(model, ServerOptions(names=("lily-tiny",))), record)
        server = uvicorn.Server(uvicorn.Config(recorder, log_level="warning", timeout_graceful_shutdown=2))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.05)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", recorder
        finally:
            server.should_exit = True
            thread.join()


def read_reply(call: tuple[str, dict[str, str]]) -> Any:
    """What the model says in the round with a tool: the call, then the code word that came back."""

    def reply(prompt: str) -> str | None:
        thinking = "I read it.\n</think>\n\n" if prompt.rstrip().endswith("<think>") else ""
        results = re.findall(r"<tool_response>(.*?)</tool_response>", prompt, re.DOTALL)
        found = [word for result in results for word in re.findall(r"heron-\d+", result)]
        if found:
            return f"{thinking}The code word is {found[-1]}."
        if READ in prompt and f'"{call[0]}"' in prompt and not results:
            return thinking + call_text(*call)
        return None

    return reply


def run_client(program: Path, client: Client, prompt: str, home: Path, folder: Path, seconds: int) -> tuple[int, str]:
    """Run a client once; its exit status and what it printed."""
    for name, text in client.files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keep = {name: os.environ[name] for name in ("PATH", "LANG", "TERM") if name in os.environ}
    environment = {**keep, "HOME": str(home)}
    command = [str(program), *(one.replace("{prompt}", prompt) for one in client.arguments)]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env={**environment, **client.environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        return 124, (error.stdout or b"").decode("utf-8", "replace")
    return done.returncode, done.stdout.decode("utf-8", "replace")


def try_client(name: str, options: argparse.Namespace) -> bool:
    """Both rounds of one client; whether the tool round brought the file's text."""
    program = (options.clients / "node_modules" / ".bin" / name).resolve()
    work = Path(tempfile.mkdtemp(prefix=f"lily-{name}-"))
    home, folder = work / "home", work / "project"
    home.mkdir()
    folder.mkdir()
    (folder / "note.txt").write_text(f"The code word is {SECRET}.\n")
    fine = True
    replies: list[Any] = [lambda prompt: None]
    record = None if options.record is None else options.record / name
    with served(lambda prompt: replies[0](prompt), record) as (url, recorder):
        client = clients(url, folder)[name]
        version = run_client(program, Client(name, ("--version",), {}, {}, client.call), "", home, folder, 60)[1]
        print(f"== {name} {version.strip().splitlines()[-1]}", flush=True)
        for prompt, reply in ((QUESTION, lambda prompt: None), (READ, read_reply(client.call))):
            replies[0] = reply
            recorder.seen.clear() if options.record is None else recorder.seen.append("-- next round")
            began = len(recorder.seen)
            status, printed = run_client(program, client, prompt, home, folder, options.seconds)
            print(f"$ {name} {' '.join(client.arguments).replace('{prompt}', repr(prompt))}   [status {status}]")
            print(printed.strip()[-options.characters :])
            print(*(f"   {line}" for line in recorder.seen[began:]), sep="\n", flush=True)
            fine = fine and status == 0 and (prompt != READ or SECRET in printed)
    shutil.rmtree(work, ignore_errors=True)
    return fine


def main() -> int:
    """Run the clients that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", type=Path, help="where npm installed them")
    parser.add_argument("--only", action="append", help="a client's name; may be repeated")
    parser.add_argument("--record", type=Path, help="keep the bodies of requests in this folder")
    parser.add_argument("--seconds", type=int, default=300, help="most seconds of one run")
    parser.add_argument("--characters", type=int, default=1500, help="most characters of an answer to show")
    options = parser.parse_args()
    if INSIDE not in os.environ and shutil.which("unshare") and shutil.which("ip"):
        inside = ["bash", "-c", 'ip link set lo up && exec "$@"', "bash", sys.executable, *sys.argv]
        return subprocess.call(["unshare", "--map-root-user", "--net", *inside], env={**os.environ, INSIDE: "1"})
    results = {name: try_client(name, options) for name in clients("", Path()) if name in (options.only or [name])}
    print(*(f"{name}: {'both rounds work' if fine else 'FAILED'}" for name, fine in results.items()), sep="\n")
    return 0 if all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
