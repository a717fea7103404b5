"""Agent frameworks against the server: each completes a round with a tool call. Needs the extra ``frameworks``."""

import pytest

QUESTION = "Please call the function roll_dice with n set to 99."
SYSTEM = "Use the tools."


@pytest.fixture
def calls():
    """What the tool was called with."""
    return []


@pytest.fixture
def endpoint(start):
    with start(thinking=False) as client:
        yield f"{client.base_url}/v1"


def test_langchain(endpoint, calls):
    langchain_openai = pytest.importorskip("langchain_openai")
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    @tool
    def roll_dice(n: int) -> int:
        """Roll a die."""
        calls.append(n)
        return 42

    for responses in (False, True):
        model = langchain_openai.ChatOpenAI(
            model="lily-tiny",
            base_url=endpoint,
            api_key="none",
            temperature=0,
            use_responses_api=responses,
            max_retries=0,
        ).bind_tools([roll_dice])
        history = [HumanMessage(QUESTION)]
        answer = model.invoke(history)
        results = [
            ToolMessage(str(roll_dice.invoke(call["args"])), tool_call_id=call["id"]) for call in answer.tool_calls
        ]
        assert calls.pop() == 99
        last = model.invoke([*history, answer, *results])
        assert last.content or last.tool_calls
        whole = None
        for chunk in model.stream(history):
            whole = chunk if whole is None else whole + chunk
        assert [call["args"] for call in whole.tool_calls] == [{"n": 99}]
        assert whole.usage_metadata is None or whole.usage_metadata["output_tokens"] > 0


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_pydantic_ai(endpoint, calls, api):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = {"chat": OpenAIChatModel, "responses": OpenAIResponsesModel}[api]
    model = kind("lily-tiny", provider=OpenAIProvider(base_url=endpoint, api_key="none"))
    agent = pydantic_ai.Agent(model, model_settings={"temperature": 0, "max_tokens": 200})

    @agent.tool_plain
    def roll_dice(n: int) -> int:
        """Roll a die."""
        calls.append(n)
        return 42

    result = agent.run_sync(QUESTION)
    assert calls == [99]
    assert "42" in result.output
    assert result.usage.requests >= 2


def test_smolagents(endpoint, calls):
    smolagents = pytest.importorskip("smolagents")
    pytest.importorskip("llguidance")  # this framework forces calls

    @smolagents.tool
    def roll_dice(n: int) -> int:
        """Roll a die.

        Args:
            n: Number of sides.
        """
        calls.append(n)
        return 42

    model = smolagents.OpenAIServerModel("lily-tiny", api_base=endpoint, api_key="none", temperature=0, max_tokens=120)
    agent = smolagents.ToolCallingAgent(tools=[roll_dice], model=model, max_steps=2, verbosity_level=0)
    agent.prompt_templates["system_prompt"] = SYSTEM
    agent.run(QUESTION)
    assert calls[0] == 99


def test_litellm(endpoint, calls):
    litellm = pytest.importorskip("litellm")
    parameters = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tool = {
        "type": "function",
        "function": {"name": "roll_dice", "description": "Roll a die.", "parameters": parameters},
    }
    fields = {"model": "openai/lily-tiny", "api_base": endpoint, "api_key": "none", "tools": [tool], "temperature": 0}
    history = [{"role": "user", "content": QUESTION}]
    answer = litellm.completion(messages=history, **fields).choices[0].message
    assert [call.function.arguments for call in answer.tool_calls] == ['{"n": 99}']
    result = {"role": "tool", "tool_call_id": answer.tool_calls[0].id, "content": "42"}
    last = litellm.completion(messages=[*history, answer.model_dump(exclude_none=True), result], **fields)
    assert "42" in last.choices[0].message.content
    chunks = list(litellm.completion(messages=history, stream=True, **fields))
    built = litellm.stream_chunk_builder(chunks)
    assert [call.function.arguments for call in built.choices[0].message.tool_calls] == ['{"n": 99}']


def test_clients_in_the_same_process(model, calls):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    openai = pytest.importorskip("openai")
    import asyncio

    import httpx
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    from lily.server import ServerOptions, create_app

    app = create_app(model, ServerOptions(names=("lily-tiny",), thinking=False))

    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport) as http:
            api = openai.AsyncOpenAI(base_url="http://lily/v1", api_key="none", http_client=http)
            agent = pydantic_ai.Agent(OpenAIChatModel("lily-tiny", provider=OpenAIProvider(openai_client=api)))

            @agent.tool_plain
            def roll_dice(n: int) -> int:
                """Roll a die."""
                calls.append(n)
                return 42

            return await agent.run(QUESTION, model_settings={"temperature": 0})

    result = asyncio.run(ask())
    app.state.service.engine.close()
    assert calls == [99]
    assert "42" in result.output
