"""Runs the installed command with the bundled model, as a user does: own process, offline."""

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("lily._core", reason="needs the built package")
pytest.importorskip("typer", reason="needs the extra for the command line")

LILY = [sys.executable, "-m", "lily"]
ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "http_proxy": "http://127.0.0.1:9", "PYTHONUTF8": "1"}


def lily(*arguments, text=None, check=True):
    done = subprocess.run(
        [*LILY, *arguments],
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        timeout=300,
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def test_a_question_gets_an_answer():
    done = lily("chat", "-p", "hi", "--seed", "1", "--max-tokens", "1000")
    assert done.stdout.strip()
    assert done.stderr == ""


def test_piped_lines_are_turns():
    done = lily("chat", "--greedy", "--no-thinking", "--max-tokens", "60", text="My key is 4711.\nhi\n")
    assert len(done.stdout.strip().splitlines()) >= 2


def test_greedy_text_is_the_same_twice_and_seeds_decide_the_rest():
    def tokens(*options):
        done = lily("generate", "-p", "Once upon a time", "--max-tokens", "40", "--json", *options)
        return json.loads(done.stdout)["tokens"]

    assert tokens("--greedy") == tokens("--temperature", "0", "--seed", "9")
    drawn = [tokens("--temperature", "1.5", "--seed", seed) for seed in ("3", "3", "4")]
    assert drawn[0] == drawn[1] != drawn[2]


def test_perplexity_of_plain_text_is_lower_than_of_noise(tmp_path):
    def perplexity(text):
        (tmp_path / "text.txt").write_text(text, encoding="utf-8")
        return json.loads(lily("perplexity", str(tmp_path / "text.txt"), "--json").stdout)["perplexity"]

    plain = "The little dog ran to the house. He was very happy to see his friend. They played in the garden."
    noise = "".join(sorted(plain))
    assert 1 < perplexity(plain) < perplexity(noise)


def test_info_of_the_bundled_model():
    assert json.loads(lily("info", "lily-tiny", "--json").stdout)["architecture"]["layers"] == 8


def test_failures_are_one_line():
    done = lily("chat", "no-such-model", "-p", "hi", check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("lily: no-such-model")
    assert done.stderr.count("\n") == 1


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_an_interrupted_generation_is_130():
    arguments = ["generate", "-p", "Once", "--ignore-stop", "--max-tokens", "100000"]
    process = subprocess.Popen(
        [*LILY, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        env=ENVIRONMENT,
        # As a terminal starts it: where a script runs in the background, all that it starts ignores the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.read(20)  # generation has begun
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in error


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("told", [signal.SIGINT, signal.SIGTERM])
def test_serving_answers_and_ends_when_it_is_told_to(told, tmp_path):
    pytest.importorskip("starlette", reason="needs the extra for the server")
    httpx = pytest.importorskip("httpx")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["serve", "--model", "lily-tiny", "--port", str(port), "--cache-dir", str(tmp_path / "cache")]
    process = subprocess.Popen([*LILY, *arguments], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, env=ENVIRONMENT)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            _wait_for(client, httpx.ConnectError)
            messages = [{"role": "user", "content": "Hello! " * 40}]
            answer = client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 5}).json()
            assert answer["usage"]["completion_tokens"] == 5
        process.send_signal(told)
        _, error = process.communicate(timeout=60)
        assert b"Traceback" not in error
        assert process.returncode == 0
        # The model was closed: what it knows is there for the next process.
        assert list((tmp_path / "cache").iterdir())
    finally:
        process.kill()
        process.wait()


def _wait_for(client, not_yet, seconds=60):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(not_yet):
            if client.get("/health").status_code == 200:
                return
        time.sleep(0.1)
    raise AssertionError("the server did not start")


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
def test_ctrl_c_on_a_terminal_stops_the_answer_only():
    import pty

    main_end, other_end = pty.openpty()
    process = subprocess.Popen(
        [*LILY, "chat", "--temperature", "3", "--top-k", "0", "--top-p", "1", "--seed", "7"],
        stdin=other_end,
        stdout=other_end,
        stderr=other_end,
        env={**ENVIRONMENT, "TERM": "xterm"},
        start_new_session=True,
        preexec_fn=_take_terminal,
    )
    os.close(other_end)
    try:
        _read_until(main_end, rb"> $")
        os.write(main_end, b"Tell me a very long story\n")
        _read_until(main_end, rb"story\r\n(?s:.{200})")  # the answer runs: with this seed it has 1130 tokens
        os.write(main_end, b"\x03")
        _read_until(main_end, rb"stopped(?s:.*)> $")
        os.write(main_end, b"/quit\n")
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(main_end)


def _take_terminal():
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _read_until(descriptor, pattern, seconds=60):
    """Read from a terminal until what it shows, without styles, matches."""
    shown, end = b"", time.monotonic() + seconds
    while not re.search(pattern, re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", shown)):
        assert time.monotonic() < end, shown[-2000:]
        if select.select([descriptor], [], [], 0.5)[0]:
            with contextlib.suppress(OSError):
                shown += os.read(descriptor, 4096)
    return shown
