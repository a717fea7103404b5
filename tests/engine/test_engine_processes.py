"""Forked children are told to load for themselves, and end without waiting for threads they do not have."""

from __future__ import annotations

from pathlib import Path

from engine_helpers import expect_success, run_python

IN_A_FORKED_CHILD = """
import gc, os, sys, lily
from lily.errors import BackendError
model = lily.Model.load(sys.argv[1], threads=3)
session = model.prefill([1, 2, 3])
before = session.decode(4).copy()
child = os.fork()
if child == 0:
    refused = 0
    for use in (
        lambda: session.prefill([1]),
        lambda: session.decode(1),
        lambda: session.score([1, 2]),
        lambda: next(session.generate(max_tokens=1)),
        lambda: model.prefill([1]),
    ):
        try:
            use()
        except BackendError as error:
            assert "fork" in str(error) and "spawn" in str(error)
            refused += 1
    assert refused == 5
    assert session.tokens == [1, 2, 3, 4]
    with lily.Model.load(sys.argv[1], threads=2) as own:
        assert (own.prefill([1, 2, 3, 4]).logits == before).all()
    model.close()
    del model, session
    gc.collect()
    sys.exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
assert (model.prefill([1, 2, 3, 4]).logits == before).all()
"""

SPAWNED = """
import multiprocessing, sys, lily

def work(directory, ids):
    with lily.Model.load(directory, threads=1) as model:
        return model.prefill(ids).logits.tobytes()

if __name__ == "__main__":
    directory = sys.argv[1]
    model = lily.Model.load(directory, threads=2)
    prompts = [[1, 2, 3], [4, 5]]
    expected = [model.prefill(ids).logits.tobytes() for ids in prompts]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.starmap(work, [(directory, ids) for ids in prompts]) == expected
"""


def test_forked_child(checkpoint: Path) -> None:
    expect_success(run_python(IN_A_FORKED_CHILD, checkpoint))


def test_spawned_children(checkpoint: Path, tmp_path: Path) -> None:
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    code = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    expect_success(run_python(code, script, checkpoint))
