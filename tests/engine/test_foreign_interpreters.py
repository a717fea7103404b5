"""Subinterpreters are refused at import: in one, loading a model would wait for ever."""

from __future__ import annotations

import pytest

from engine_helpers import run_python

CODE = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

inner = '''
import sys
sys.path[:] = {path!r}
try:
    {statement}
except ImportError as error:
    assert "subinterpreter" in str(error), error
else:
    raise AssertionError("it was imported")
'''.format(path=sys.path, statement=sys.argv[1])
{first}
created = interpreters.create()
failure = interpreters.run_string(created, inner)
assert failure is None, failure
import lily
print(lily.Model.load("lily-tiny", threads=1).close())
"""
NATIVE = (
    "import importlib.util, pathlib; "
    "file = next(pathlib.Path(path) / 'lily' for path in sys.path if (pathlib.Path(path) / 'lily').is_dir()); "
    "name = next(str(one) for one in file.iterdir() if one.name.startswith('_core.') and one.suffix == '.so'); "
    "spec = importlib.util.spec_from_file_location('lily._core', name); "
    "spec.loader.exec_module(importlib.util.module_from_spec(spec))"
)


@pytest.mark.parametrize("first", ["", "import lily"])
@pytest.mark.parametrize("statement", ["import lily", "import lily.server", "from lily import errors", NATIVE])
def test_import_in_a_subinterpreter(first: str, statement: str) -> None:
    done = run_python(CODE.replace("{first}", first), statement)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
