"""Responses that the server keeps: later ones go on from them, they can be read and deleted, memory is bounded."""

import threading

import pytest

from lily.server.errors import ApiError
from lily.server.response_store import ResponseStore

RESPONSES = "/v1/responses"
QUIET = {"model": "lily-tiny", "temperature": 0, "reasoning": {"effort": "none"}, "max_output_tokens": 30}


def ask(client, given, **fields):
    response = client.post(RESPONSES, json={**QUIET, "input": given, **fields})
    assert response.status_code == 200, response.text
    return response.json()


def test_a_conversation_by_ids(client, prompt_of):
    first = ask(client, "Hello!", instructions="Be brief.")
    second = ask(client, "And now?", previous_response_id=first["id"])
    prompt = prompt_of(
        RESPONSES, {**QUIET, "input": "Bye.", "previous_response_id": second["id"], "max_output_tokens": 1}
    )
    texts = ["Hello!", first["output"][-1]["content"][0]["text"], "And now?"]
    texts += [second["output"][-1]["content"][0]["text"], "Bye."]
    places = [prompt.index(text) for text in texts]
    assert places == sorted(places)
    assert "Be brief." not in prompt  # instructions are those of one request
    assert second["previous_response_id"] == first["id"]


def test_a_conversation_by_ids_is_the_one_by_items(client):
    first = ask(client, "Hello!")
    by_id = ask(client, "And now?", previous_response_id=first["id"])
    items = [{"role": "user", "content": "Hello!"}, *first["output"], {"role": "user", "content": "And now?"}]
    by_items = ask(client, items)
    assert by_id["output"][-1]["content"] == by_items["output"][-1]["content"]
    assert by_id["usage"]["input_tokens"] == by_items["usage"]["input_tokens"]
    assert by_id["usage"]["input_tokens_details"]["cached_tokens"] >= first["usage"]["total_tokens"]


def test_the_openai_client_reads_and_deletes(client):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none", max_retries=0) as api:
        made = api.responses.create(**QUIET, input="Hello!")
        again = api.responses.retrieve(made.id)
        assert again.output_text == made.output_text
        assert again.store is True
        items = api.responses.input_items.list(made.id)
        assert [item.content[0].text for item in items] == ["Hello!"]
        with api.responses.stream(**QUIET, input="And?", previous_response_id=made.id) as stream:
            streamed = stream.until_done().get_final_response()
        assert api.responses.retrieve(streamed.id).output_text == streamed.output_text
        reference = [{"type": "item_reference", "id": made.output[-1].id}, {"role": "user", "content": "Well?"}]
        assert api.responses.create(**QUIET, input=reference).usage.input_tokens > made.usage.input_tokens
        assert api.responses.input_tokens.count(model="lily-tiny", input="Hello!").input_tokens > 3
        api.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(made.id)
        assert api.responses.create(**QUIET, input="And?", previous_response_id=streamed.id).output_text
        with pytest.raises(openai.BadRequestError) as gone:
            api.responses.create(**QUIET, input="And?", previous_response_id=made.id)
        assert gone.value.code == "previous_response_not_found"
        with pytest.raises(openai.BadRequestError):
            api.responses.cancel(streamed.id)


def test_what_is_not_to_be_kept_is_not(client):
    made = ask(client, "Hello!", store=False)
    assert made["store"] is False
    assert client.get(f"{RESPONSES}/{made['id']}").status_code == 404
    before = client.service.responses.size
    assert client.post(RESPONSES, json={"input": 3}).status_code == 400
    assert client.service.responses.size == before


def test_lists_of_items_have_pages(client):
    given = [{"role": "user", "content": f"Number {at}."} for at in range(5)]
    name = ask(client, given)["id"]
    path = f"{RESPONSES}/{name}/input_items"
    page = client.get(path, params={"order": "asc", "limit": 2}).json()
    assert [item["content"][0]["text"] for item in page["data"]] == ["Number 0.", "Number 1."]
    assert page["has_more"]
    rest = client.get(path, params={"order": "asc", "after": page["last_id"]}).json()
    assert len(rest["data"]) == 3
    assert not rest["has_more"]
    assert client.get(path).json()["data"][0]["content"][0]["text"] == "Number 4."
    for query in ({"limit": "0"}, {"limit": "x"}, {"after": "nowhere"}):
        assert client.get(path, params=query).status_code == 400


def test_keys_see_their_own_responses(start):
    with start(api_keys=("one", "two")) as client:
        headers = {name: {"authorization": f"Bearer {name}"} for name in ("one", "two")}
        made = client.post(RESPONSES, json={**QUIET, "input": "Hello!"}, headers=headers["one"]).json()
        assert client.get(f"{RESPONSES}/{made['id']}", headers=headers["one"]).status_code == 200
        assert client.get(f"{RESPONSES}/{made['id']}", headers=headers["two"]).status_code == 404
        more = {**QUIET, "input": "x", "previous_response_id": made["id"]}
        assert client.post(RESPONSES, json=more, headers=headers["two"]).status_code == 400
        assert client.get(f"{RESPONSES}/{made['id']}").status_code == 401


def response(name, previous=None, text="x"):
    output = [{"type": "message", "id": f"msg_{name}", "role": "assistant", "content": text}]
    return {"id": name, "previous_response_id": previous, "output": output}


def test_the_oldest_ones_go_first():
    store = ResponseStore(most_responses=3)
    for name in "abc":
        store.put(response(name), [{"id": f"in_{name}"}], "")
    store.get("a", "")
    store.put(response("d"), [], "")
    assert store.get("a", "").body["id"] == "a"
    with pytest.raises(ApiError):
        store.get("b", "")
    assert store.item("msg_b", "") is None
    assert store.item("in_b", "") is None
    assert store.item("msg_a", "") is not None
    assert store.item("msg_a", "other") is None


def test_bytes_are_bounded():
    store = ResponseStore(most_bytes=10_000)
    for at in range(100):
        store.put(response(str(at), text="y" * 900), [], "")
        assert store.size[1] <= 10_000
    assert 5 < store.size[0] < 12
    store.put(response("large", text="y" * 20_000), [], "")
    with pytest.raises(ApiError):
        store.get("large", "")


def test_a_chain_whose_beginning_is_gone_or_that_is_a_ring():
    store = ResponseStore(most_responses=2)
    for at in range(3):
        store.put(response(str(at), str(at - 1) if at else None), [], "")
    with pytest.raises(ApiError) as error:
        store.conversation("2", "")
    assert error.value.code == "previous_response_not_found"
    store.put(response("r", "r"), [], "")
    assert len(store.conversation("r", "")) == 1


def test_threads_share_it():
    store = ResponseStore(most_responses=8)

    def work(name):
        for at in range(200):
            store.put(response(f"{name}{at}"), [], "")
            store.item(f"msg_{name}{at}", "")

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.size[0] == 8


def test_references_that_name_themselves(client):
    for _ in range(2):  # the second one finds what the first one left
        made = ask(client, [{"type": "item_reference", "id": "ring"}, {"role": "user", "content": "Hello!"}])
        assert "ring" in made["warnings"][0]


def test_what_goes_on_from_a_deleted_response_keeps_its_history(client, prompt_of):
    first = ask(client, "One.")
    second = ask(client, "Two.", previous_response_id=first["id"])
    third = ask(
        client, [{"type": "item_reference", "id": first["output"][-1]["id"]}, {"role": "user", "content": "Three."}]
    )
    prompts = [
        prompt_of(RESPONSES, {**QUIET, "input": "Bye.", "previous_response_id": one["id"], "max_output_tokens": 1})
        for one in (second, third)
    ]
    assert client.delete(f"{RESPONSES}/{first['id']}").status_code == 200
    assert client.get(f"{RESPONSES}/{first['id']}").status_code == 404
    assert client.delete(f"{RESPONSES}/{first['id']}").status_code == 404
    gone = client.post(RESPONSES, json={**QUIET, "input": "x", "previous_response_id": first["id"]})
    assert gone.json()["error"]["code"] == "previous_response_not_found"
    for one, prompt in zip((second, third), prompts, strict=True):
        again = {**QUIET, "input": "Bye.", "previous_response_id": one["id"], "max_output_tokens": 1}
        assert prompt_of(RESPONSES, again) == prompt


def test_deleted_responses_are_forgotten_with_the_last_that_goes_on_from_them():
    store = ResponseStore()
    for name, previous in (("a", None), ("b", "a"), ("c", "a"), ("d", "b")):
        body = {"id": name, "previous_response_id": previous, "output": [{"id": f"of {name}", "type": "message"}]}
        store.put(body, [{"id": f"to {name}", "type": "message"}], "me")
    items = store.conversation("d", "me")
    for name in ("a", "b"):
        store.remove(name, "me")
    assert store.conversation("d", "me") == items
    assert store.item("of a", "me") is None
    assert store.size[0] == 4
    store.remove("d", "me")
    assert store.size[0] == 2
    store.remove("c", "me")
    assert store.size == (0, 0)


def test_a_response_that_goes_while_another_goes_on_from_it(client, monkeypatch):
    first = ask(client, "Hello!")
    put = client.service.responses.put

    def put_late(*arguments):
        assert client.service.responses.get(first["id"], "")
        client.service.responses.remove(first["id"], "")
        put(*arguments)

    monkeypatch.setattr(client.service.responses, "put", put_late)
    second = ask(client, "And now?", previous_response_id=first["id"])
    monkeypatch.undo()
    assert client.get(f"{RESPONSES}/{first['id']}").status_code == 404
    third = ask(client, "Bye.", previous_response_id=second["id"])
    items = [{"role": "user", "content": "Hello!"}, *first["output"], {"role": "user", "content": "And now?"}]
    items += [*second["output"], {"role": "user", "content": "Bye."}]
    assert third["usage"]["input_tokens"] == ask(client, items)["usage"]["input_tokens"]


def test_a_response_whose_earlier_items_came_with_it_is_bounded_and_goes_as_a_whole():
    store = ResponseStore(most_bytes=3_000)
    store.put(response("b", "a"), [{"id": "in_b"}], "", before=[{"id": "in_a", "text": "y" * 500}])
    assert [item["id"] for item in store.conversation("b", "")] == ["in_a", "in_b", "msg_b"]
    store.put(response("c", "b"), [], "")
    store.remove("b", "")
    assert [item["id"] for item in store.conversation("c", "")] == ["in_a", "in_b", "msg_b", "msg_c"]
    store.remove("c", "")
    assert store.size == (0, 0)
    store.put(response("d", "a"), [], "", before=[{"text": "y" * 5_000}])
    assert store.size == (0, 0)
