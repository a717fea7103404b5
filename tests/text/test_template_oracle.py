"""Compares rendering with transformers, an independent implementation of the same template environment."""

import pytest
from conversations import CONVERSATIONS, OPTIONS
from test_full_size_model import full_template  # noqa: F401  (a fixture)


@pytest.fixture(scope="module")
def render_with_transformers():
    module = pytest.importorskip("transformers.utils.chat_template_utils")

    def render(source, messages, options):
        texts, _ = module.render_jinja_template(
            conversations=[messages],
            chat_template=source,
            **{"tools": None, "add_generation_prompt": True, **options},
        )
        return texts[0]

    return render


@pytest.mark.parametrize("name", CONVERSATIONS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("which", ["template", "full_template"])
def test_equal_text(request, render_with_transformers, which, name, options):
    ours = request.getfixturevalue(which)
    theirs = render_with_transformers(ours.source, CONVERSATIONS[name], options)
    assert ours.render(CONVERSATIONS[name], **options) == theirs
